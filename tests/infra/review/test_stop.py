"""stop and start: what an endpoint allowed is kept before it is cut, and given back; one endpoint that fails hides no other."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from contract.errors import InfrastructureError, UsageError
from infra.review.stop import balanced, forget, read_stopped, start, stop, stop_path
from tests.infra.review.cloud import NOW, Cloud, live

ONE = {"ep-minilm": "minilm"}
TWO = {**ONE, "ep-smollm2": "smollm2"}


def two() -> Cloud:
    return Cloud.of(live(workers={"min": 1, "max": 5}), live("smollm2", workers={"max": 3}))


def allowed(cloud: Cloud) -> dict[str, tuple[int, int]]:
    return {key: (one["workers"]["min"], one["workers"]["max"]) for key, one in cloud.endpoints.items()}


async def test_stop_cuts_every_endpoint_and_start_gives_back_what_it_had(tmp_path: Path) -> None:
    cloud, path = two(), stop_path(tmp_path, "prod")
    cuts, unkept = await stop(cloud, "prod", TWO, path=path, at=NOW)
    assert allowed(cloud) == {"ep-minilm": (0, 0), "ep-smollm2": (0, 0)}
    assert [(cut.name, cut.before, cut.after, cut.error) for cut in cuts] == [("minilm", (1, 5), 0, None), ("smollm2", (0, 3), 0, None)]
    assert unkept is None
    given = await start(cloud, "prod", TWO, path=path)
    assert all(cut.done for cut in given)
    assert allowed(cloud) == {"ep-minilm": (1, 5), "ep-smollm2": (0, 3)}
    assert not path.exists()


async def test_stopping_twice_remembers_the_first_values(tmp_path: Path) -> None:
    cloud, path = two(), stop_path(tmp_path, "prod")
    await stop(cloud, "prod", TWO, path=path, at=NOW)
    again, _ = await stop(cloud, "prod", TWO, path=path, at=NOW + timedelta(hours=1))
    assert [cut.after for cut in again] == [0, 0]
    assert len(cloud.patches) == 2
    await start(cloud, "prod", TWO, path=path)
    assert allowed(cloud) == {"ep-minilm": (1, 5), "ep-smollm2": (0, 3)}


async def test_what_was_allowed_is_kept_before_anything_is_cut(tmp_path: Path) -> None:
    cloud, path = two(), stop_path(tmp_path, "prod")
    cloud.down.add("update_endpoint")
    cuts, _ = await stop(cloud, "prod", TWO, path=path, at=NOW)
    assert [cut.done for cut in cuts] == [False, False]
    assert {one.endpoint_id: one.workers_max for one in read_stopped(path)} == {"ep-minilm": 5, "ep-smollm2": 3}


async def test_an_endpoint_that_is_gone_hides_no_other(tmp_path: Path) -> None:
    cloud, path = Cloud.of(live()), stop_path(tmp_path, "prod")
    cuts, _ = await stop(cloud, "prod", TWO, path=path, at=NOW)
    assert [cut.done for cut in cuts] == [True, False]
    assert "404" in (cuts[1].error or "")
    assert allowed(cloud) == {"ep-minilm": (0, 0)}


async def test_an_endpoint_that_cannot_be_read_is_stopped_all_the_same(tmp_path: Path) -> None:
    """A kill switch does not need to know what it switches off; only the way back then is `doctor --fix` or `pulumi up --refresh`."""
    cloud, path = two(), stop_path(tmp_path, "prod")
    cloud.down.add("get_endpoint")
    cuts, _ = await stop(cloud, "prod", TWO, path=path, at=NOW)
    assert allowed(cloud) == {"ep-minilm": (0, 0), "ep-smollm2": (0, 0)}
    assert [(cut.before, cut.after, cut.error) for cut in cuts] == [(None, 0, None)] * 2
    assert read_stopped(path) == ()


async def test_what_cannot_be_given_back_stays_on_record(tmp_path: Path) -> None:
    cloud, path = two(), stop_path(tmp_path, "prod")
    await stop(cloud, "prod", TWO, path=path, at=NOW)
    cloud.quota = 4
    given = await start(cloud, "prod", TWO, path=path)
    assert [cut.done for cut in given] == [False, True]
    assert "says 4" in (given[0].error or "")
    assert [one.endpoint_id for one in read_stopped(path)] == ["ep-minilm"]


async def test_a_record_that_cannot_be_written_stops_no_stop(tmp_path: Path) -> None:
    cloud = two()
    (tmp_path / "stopped").write_text("in the way")
    cuts, unkept = await stop(cloud, "prod", TWO, path=stop_path(tmp_path, "prod"), at=NOW)
    assert allowed(cloud) == {"ep-minilm": (0, 0), "ep-smollm2": (0, 0)}
    assert [cut.before for cut in cuts] == [(1, 5), (0, 3)]
    assert unkept is not None
    assert "could not be kept" in unkept


async def test_a_start_without_a_stop_says_what_else_raises_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="doctor prod --fix"):
        await start(two(), "prod", TWO, path=stop_path(tmp_path, "prod"))


async def test_a_damaged_record_is_named_and_stops_no_stop(tmp_path: Path) -> None:
    cloud, path = two(), stop_path(tmp_path, "prod")
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(InfrastructureError, match="pulumi up"):
        await start(cloud, "prod", TWO, path=path)
    _, problem = await stop(cloud, "prod", TWO, path=path, at=NOW)
    assert problem is not None
    assert "cannot be read" in problem
    assert allowed(cloud) == {"ep-minilm": (0, 0), "ep-smollm2": (0, 0)}
    assert len(read_stopped(path)) == 2


async def test_an_endpoint_that_was_at_zero_is_not_remembered(tmp_path: Path) -> None:
    cloud, path = Cloud.of(live(workers={"max": 0})), stop_path(tmp_path, "prod")
    (cut,), _ = await stop(cloud, "prod", ONE, path=path, at=NOW)
    assert cut.done
    assert not path.exists()


async def test_a_stop_that_somebody_undid_by_hand_is_forgotten(tmp_path: Path) -> None:
    """Else a later idle cut would be taken for it, and never be mended."""
    cloud, path = two(), stop_path(tmp_path, "prod")
    await stop(cloud, "prod", TWO, path=path, at=NOW)
    forget(path, "prod", {"ep-minilm"})
    assert [one.endpoint_id for one in read_stopped(path)] == ["ep-smollm2"]
    forget(path, "prod", {"ep-minilm", "ep-smollm2"})
    assert not path.exists()
    forget(path, "prod", {"ep-minilm"})


def test_a_stacks_name_never_leaves_its_folder(tmp_path: Path) -> None:
    assert stop_path(tmp_path, "org/../prod").parent == tmp_path / "stopped"
    assert stop_path(tmp_path, "prod").name == "prod.json"


async def test_load_balancing_endpoints_are_found_by_the_programs_names(tmp_path: Path) -> None:
    names = ("nightbatch-prod-chat", "nightbatch-prod-eu-chat", "nightbatch-dev-chat", "elsewhere-prod-chat")
    cloud = Cloud.of(*(live(name, type="LOAD_BALANCER") for name in names), live("nightbatch-prod-minilm"))
    found = await balanced(cloud, "prod", others=("prod", "dev", "prod-eu"))
    assert found == {"ep-nightbatch-prod-chat": "nightbatch-prod-chat"}
    path = stop_path(tmp_path, "prod")
    await stop(cloud, "prod", {"ep-nightbatch-prod-minilm": "minilm"}, path=path, at=NOW)
    await stop(cloud, "prod", found, path=path, at=NOW)
    assert {one.endpoint_id for one in read_stopped(path)} == {"ep-nightbatch-prod-minilm", "ep-nightbatch-prod-chat"}
