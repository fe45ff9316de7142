"""Tests of the captured shapes: which are usable and when the next one is captured."""

import time

import torch

from syrinx_stages.codec.shapes import CapturedShapes

CAPTURE_SECONDS = 0.05


class Engine:
    """An engine whose captures take CAPTURE_SECONDS; shapes of 64 rows do not fit into its memory."""

    def __init__(self) -> None:
        self.captured: set[tuple[int, int]] = set()

    def capture(self, shape: tuple[int, int]) -> None:
        time.sleep(CAPTURE_SECONDS)
        if shape[0] == 64:
            raise torch.OutOfMemoryError
        self.captured.add(shape)

    def free_shapes(self, shapes: object) -> None:
        self.captured.difference_update(shapes)


def test_change_captures_one_wanted_shape_at_a_time_and_frees_the_unwanted_ones() -> None:
    shapes, engine, wanted = CapturedShapes(), Engine(), ((1, 2), (2, 2))
    shapes.change(engine, wanted)
    assert (shapes.usable(wanted), shapes.change_due(wanted, idle=True)) == ([(1, 2)], True)
    shapes.change(engine, wanted)
    assert (shapes.usable(wanted), shapes.change_due(wanted, idle=True)) == ([(1, 2), (2, 2)], False)
    wanted = ((2, 2), (4, 2))
    assert shapes.usable(wanted) == [(2, 2)], "an unwanted shape is unusable immediately"
    shapes.change(engine, wanted)
    assert engine.captured == {(2, 2), (4, 2)}
    assert shapes.change_due((), idle=True)
    shapes.change(engine, ())
    assert (engine.captured, shapes.change_due((), idle=True)) == (set(), False)


def test_captures_pause_while_streams_are_waiting() -> None:
    shapes, engine, wanted = CapturedShapes(), Engine(), ((1, 2), (2, 2))
    assert shapes.change_due(wanted, idle=False)
    shapes.change(engine, wanted)
    assert not shapes.change_due(wanted, idle=False)
    assert shapes.change_due(wanted, idle=True)


def test_a_shape_that_ran_out_of_memory_is_retried_after_it_was_removed_and_added() -> None:
    shapes, engine, wanted = CapturedShapes(), Engine(), ((64, 2),)
    shapes.change(engine, wanted)
    assert (shapes.usable(wanted), shapes.change_due(wanted, idle=True)) == ([], False)
    assert not shapes.change_due((), idle=True)
    assert shapes.change_due(wanted, idle=True)
