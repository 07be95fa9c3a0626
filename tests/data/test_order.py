"""The order against one written out in full: one endless list, dealt out to the processes."""

import itertools

import harness  # noqa: F401  # chooses the backend
import numpy as np
import pytest

from keras_vit.data.order import Order


def dealt(order, epochs):
    """The batches of a process, from the lists of all epochs."""
    whole = Order(order.size, order.seed, order.shuffle, (0, 1), 1, "keep")
    index, count = order.shard
    bad = set(order.bad.tolist())
    lists = [whole.epoch(epoch).tolist() for epoch in range(epochs)]
    if order.remainder == "repeat":
        mine = [i for i in itertools.chain(*lists)][index::count]
        lists = [mine]
    elif order.remainder == "drop":
        lists = [x[: order.size // count * count][index::count] for x in lists]
    else:
        lists = [x[index::count] for x in lists]
    batches = []
    for found in lists:
        found = [i for i in found if i not in bad]
        cut = [found[i : i + order.batch_size] for i in range(0, len(found), order.batch_size)]
        whole_only = order.remainder != "keep"
        batches += [b for b in cut if len(b) == order.batch_size or not whole_only]
    return batches


@pytest.mark.parametrize("remainder", ["repeat", "keep", "drop"])
@pytest.mark.parametrize("shard", [(0, 1), (0, 3), (2, 3), (1, 2)])
@pytest.mark.parametrize("bad", [(), (3,), (0, 5, 6)])
@pytest.mark.parametrize("size", [11, 12])
def test_any_batch_is_found(remainder, shard, bad, size):
    order = Order(size, 7, True, shard, 2, remainder, bad)
    expected = dealt(order, 24)
    assert len(expected) > 20
    for step, batch in enumerate(expected[:20]):
        assert order.batch(step).tolist() == batch
        epoch, before = order.locate(step)
        # The place is one in the epoch itself, even where a batch ends in the next.
        assert before < len(order.epoch(epoch))
        assert order.epoch(epoch)[before] == batch[0]


def test_epochs_are_permutations_of_their_own():
    order = Order(50, 1, True, (0, 1), 1, "repeat")
    epochs = [order.epoch(epoch).tolist() for epoch in range(5)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5
    assert order.epoch(3).tolist() == epochs[3]
    assert Order(50, 2, True, (0, 1), 1, "repeat").epoch(3).tolist() != epochs[3]
    # No trace of the old order is left.
    moved = np.mean(np.asarray(epochs) == np.arange(50))
    assert moved < 0.1


def test_processes_share_an_epoch_out():
    for remainder in ("repeat", "keep"):
        parts = [Order(10, 3, True, (i, 3), 4, remainder).epoch(2).tolist() for i in range(3)]
        assert sorted(sum(parts, [])) == list(range(10))
    parts = [Order(10, 3, True, (i, 3), 4, "drop").epoch(2).tolist() for i in range(3)]
    assert [len(part) for part in parts] == [3, 3, 3]
    assert len(set(sum(parts, []))) == 9


def test_a_far_step_of_a_large_set_is_found_at_once():
    order = Order(1_281_167, 0, True, (5, 8), 512, "repeat")
    epoch, before = order.locate(10**9)
    place = 5 + 8 * 512 * 10**9
    assert epoch == place // 1_281_167
    assert before == (place - epoch * 1_281_167) // 8
