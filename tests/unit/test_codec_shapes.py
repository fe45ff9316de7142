"""Which shapes of decoder calls are ready, and when the next one is made ready."""

import time

import torch

from syrinx_stages.codec.shapes import Shapes

SLOW = 0.05


class Engine:
    """Captures take a while, and there is no memory for shapes of 64 rows."""

    def __init__(self) -> None:
        self.captured: set[tuple[int, int]] = set()

    def capture(self, shape: tuple[int, int]) -> None:
        time.sleep(SLOW)
        if shape[0] == 64:
            raise torch.OutOfMemoryError
        self.captured.add(shape)

    def forget_shapes(self, shapes: object) -> None:
        self.captured.difference_update(shapes)


def test_one_shape_at_a_time_and_only_what_is_wanted() -> None:
    shapes, engine, wanted = Shapes(), Engine(), ((1, 2), (2, 2))
    shapes.change(engine, wanted)
    assert (shapes.ready(wanted), shapes.due(wanted, idle=True)) == ([(1, 2)], True)
    shapes.change(engine, wanted)
    assert (shapes.ready(wanted), shapes.due(wanted, idle=True)) == ([(1, 2), (2, 2)], False)
    wanted = ((2, 2), (4, 2))
    assert shapes.ready(wanted) == [(2, 2)], "at once: what is not wanted is not padded to"
    shapes.change(engine, wanted)
    assert engine.captured == {(2, 2), (4, 2)}


def test_while_streams_wait_captures_take_a_small_part_of_the_time() -> None:
    shapes, engine, wanted = Shapes(), Engine(), ((1, 2), (2, 2))
    assert shapes.due(wanted, idle=False)
    shapes.change(engine, wanted)
    assert not shapes.due(wanted, idle=False)
    assert shapes.due(wanted, idle=True)


def test_a_shape_there_is_no_memory_for_is_tried_again_only_when_it_is_wanted_anew() -> None:
    shapes, engine, wanted = Shapes(), Engine(), ((64, 2),)
    shapes.change(engine, wanted)
    assert (shapes.ready(wanted), shapes.due(wanted, idle=True)) == ([], False)
    assert not shapes.due((), idle=True)
    assert shapes.due(wanted, idle=True)


def test_what_is_no_longer_wanted_is_freed() -> None:
    shapes, engine = Shapes(), Engine()
    shapes.change(engine, ((1, 2),))
    assert shapes.due((), idle=True)
    shapes.change(engine, ())
    assert (engine.captured, shapes.due((), idle=True)) == (set(), False)
