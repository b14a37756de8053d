"""Routes of `/api/v1`, one module per noun; `api` lists their routers."""
