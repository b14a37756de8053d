"""The page of the configuration: the tree, a draft of a change, what it would do, the versions."""

from fastapi import APIRouter

from pilotage.service.pages.configuration import changing, history, showing

router = APIRouter()
router.include_router(showing.router)
router.include_router(changing.router)
router.include_router(history.router)
