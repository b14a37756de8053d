from pilotage.fabric.pilot.payload import description, monitor
from pilotage.fabric.pilot.payload.monitor import Limit, Limits, SlotShare

MB = 1 << 20
HUNDRED = Limit(100 * MB, "MaxRAM")
UNKNOWN = SlotShare()


def of(share: SlotShare = UNKNOWN, **body: object) -> Limits:
    return monitor.job_limits(description.read_description({"Executable": "x", **body}), share)


def memory_of(share: SlotShare, **ram: object) -> Limit | None:
    return of(share, requirements={"cpu": {"ram_mb": ram}}).memory


def test_without_any_word_there_is_no_limit() -> None:
    assert of() == Limits(wall_time=None, memory=None)


def test_the_smaller_of_job_and_slot_holds() -> None:
    slot = SlotShare(seconds_left=10_000, max_ram=200)
    assert of(slot, MaxRAM=100).memory == Limit(100 * MB, "MaxRAM")
    assert of(slot, MaxRAM=300).memory == Limit(200 * MB, "the slot")
    assert of(slot, MaxWallClockTime=60).wall_time == 60


def test_the_limit_of_a_document_grows_with_the_cores() -> None:
    limit = {"overhead": 512, "per_core": 256}
    request = {"overhead": 300, "per_core": 100}
    ten = SlotShare(max_ram=9000, cores=10)
    assert memory_of(ten, request=request, limit=limit) == Limit(3072 * MB, "512 + 256 × 10 cores")
    assert memory_of(SlotShare(max_ram=3000, cores=10), limit=limit) == Limit(3000 * MB, "the slot")
    assert memory_of(SlotShare(), limit=limit) == Limit(768 * MB, "512 + 256 × 1 core")


def test_a_part_without_a_limit_has_twice_what_is_requested() -> None:
    request = {"overhead": 300, "per_core": 100}
    four = SlotShare(cores=4)
    assert memory_of(four, request=request) == Limit(1400 * MB, "600 + 200 × 4 cores")
    assert memory_of(four, request=request, limit={"per_core": 150}) == Limit(
        1200 * MB, "600 + 150 × 4 cores"
    )
    assert memory_of(four, limit={"overhead": 0, "per_core": 150}) == Limit(600 * MB, "0 + 150 × 4 cores")


def test_no_limit_follows_from_what_is_no_document() -> None:
    assert of(Requirements={"cpu": {"ram_mb": {"limit": {"overhead": 1, "per_core": 1}}}}).memory is None
    for document in ("x", {"cpu": 3}, {"cpu": {"ram_mb": [1]}}, {"cpu": {"ram_mb": {"limit": "x"}}}):
        assert of(requirements=document) == Limits(wall_time=None, memory=None)


def test_the_scratch_space_is_limited_by_the_job_else_by_the_slot() -> None:
    slot = SlotShare(scratch=50)
    assert of(slot).scratch == Limit(50 * MB, "the slot")
    assert of(slot, MinScratch=20).scratch == Limit(20 * MB, "the job")
    for amount in (30, 30.0):  # as JSON may have a whole number
        assert of(slot, requirements={"io": {"scratch_mb": amount}}).scratch == Limit(30 * MB, "the job")
    excess = of(slot).passed_by_scratch(51 * MB)
    assert excess is not None
    assert (excess.minor_status, excess.detail) == (
        "Job has exceeded its scratch space limit",
        "scratch limit 50 MB of the slot: peak 51 MB",
    )
    assert of(slot).passed_by_scratch(50 * MB) is of().passed_by_scratch(10**15) is None


def test_a_slot_keeps_time_for_the_output() -> None:
    assert of(SlotShare(seconds_left=10_000)).wall_time == 9_880
    assert of(SlotShare(seconds_left=100)).wall_time == 90


def test_time_is_passed_only_beyond_the_limit() -> None:
    allowed = Limits(wall_time=60, memory=None)

    assert allowed.passed_by_time(60) is None
    excess = allowed.passed_by_time(60.1)
    assert excess is not None
    assert excess.minor_status == "Job has exceeded maximum wall clock time"
    assert excess.detail == "allowed 60 s"


def test_memory_that_processes_share_counts_once() -> None:
    allowed = Limits(wall_time=None, memory=HUNDRED)

    assert allowed.passed_by_memory(300 * MB, lambda: 80 * MB) is None


def test_memory_beyond_the_limit_is_told_with_both_numbers() -> None:
    excess = Limits(wall_time=None, memory=HUNDRED).passed_by_memory(300 * MB, lambda: 150 * MB)

    assert excess is not None
    assert excess.minor_status == "Job has exceeded its memory limit"
    assert excess.detail == "memory limit 100 MB of MaxRAM: peak 150 MB"


def test_where_the_host_cannot_tell_what_is_shared_everything_counts() -> None:
    assert Limits(wall_time=None, memory=HUNDRED).passed_by_memory(101 * MB, lambda: None) is not None
