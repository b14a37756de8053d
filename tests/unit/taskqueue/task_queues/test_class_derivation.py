"""Derivation of requirement classes."""

from cs_config.options.options import VoOptions
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.class_derivation import derive_class


def test_what_is_stated_takes_no_memory_where_it_is_in_the_class_as_well() -> None:
    """A class may have thousands of tags, and a report of a queue reads very many classes."""
    stated = {"tags": frozenset({"a", "b"}), "cpu_time": 1, "platforms": frozenset(), "whole_node": False}
    one = derive_class("lhcb", stated, VoOptions())
    read = RequirementClass.from_json(one.to_json())
    assert read == one
    for each in (one, read):
        assert dict(each.stated)["tags"] is each.tags
        assert dict(each.stated)["whole_node"] is False
