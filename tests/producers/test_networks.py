"""The built-in networks: what they make of observations, in torch and in numpy, and what they refuse."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from penstock_producers.policy.networks import ActorCritic, Convolutions, Mlp, QNetwork, Recurrent
from penstock_producers.policy.networks.mlp import numpy_layers
from penstock_schemas.errors import PolicyError
from penstock_schemas.spaces import Box, Discrete

FLOAT32, UINT8 = np.dtype(np.float32), np.dtype(np.uint8)


def image(*shape: int, dtype: np.dtype[Any] = UINT8) -> Box:
    return Box(shape, dtype, (0.0,), (255.0,))


@pytest.mark.parametrize("hidden", [(), (8,), (16, 8)])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("free", [0, 2])
def test_an_actor_critic_is_the_same_function_in_numpy(
    hidden: tuple[int, ...], shape: tuple[int, ...], free: int
) -> None:
    network = ActorCritic(Mlp(int(np.prod(shape)), hidden), 4, free)
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_()
        observation = torch.randn(7, *shape)
        parameters, value = network(observation)
    forward = network.numpy_forward()
    assert forward is not None
    own_parameters, own_value, state = forward((observation.numpy(),), ())
    np.testing.assert_allclose(own_parameters, parameters, atol=1e-5)
    assert own_value is not None
    np.testing.assert_allclose(own_value, value, atol=1e-5)
    assert state == ()
    if free:
        assert network.head.log_std is not None
        assert own_parameters[:, -free:].tolist() == [network.head.log_std.tolist()] * 7


@pytest.mark.parametrize("rows", [1, 512])
def test_few_and_many_rows_are_the_same_function_in_numpy_however_large_their_numbers(rows: int) -> None:
    trunk = Mlp(1, (64,))
    observation = np.tile(np.float32([0, 1e-6, -1e-3, 0.5, -2, 9, -44, 60, -3e38, np.nan]), rows)[:, np.newaxis]
    with torch.no_grad():
        trunk[0].weight.fill_(1.0)
        trunk[0].bias.fill_(0.0)
        expected = trunk(torch.from_numpy(observation))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = numpy_layers(trunk)(observation)
    np.testing.assert_allclose(own, expected, rtol=0, atol=3e-7)


def test_a_q_network_is_the_same_function_in_numpy_and_answers_no_value() -> None:
    network = QNetwork(Mlp(3, (8,)), 5)
    observation = torch.randn(7, 3)
    with torch.no_grad():
        worth, value = network(observation)
    forward = network.numpy_forward()
    assert forward is not None
    own, own_value, _ = forward((observation.numpy(),), ())
    assert value is own_value is None
    np.testing.assert_allclose(own, worth, atol=1e-5)


def test_what_acts_in_numpy_is_a_copy_of_the_weights() -> None:
    network = ActorCritic(Mlp(2, (4,)), 2)
    forward = network.numpy_forward()
    assert forward is not None
    seen = (np.ones((1, 2), np.float32),)
    before = forward(seen, ())[0].tolist()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(1)
    assert forward(seen, ())[0].tolist() == before


def test_networks_with_convolutions_act_by_torch() -> None:
    trunk = Convolutions(image(10, 10, 3))
    assert ActorCritic(trunk, 2).numpy_forward() is None
    assert QNetwork(trunk, 2).numpy_forward() is None


def test_integers_and_bytes_are_taken_as_floats_by_an_mlp() -> None:
    network = ActorCritic(Mlp(6), 2)
    observation = torch.randint(0, 255, (4, 2, 3), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(network(observation)[0], network(observation.float())[0])


def test_a_recurrent_network_remembers_by_torch_s_own_cell() -> None:
    network = Recurrent(Mlp(3, (8,)), 4, units=5)
    assert network.state_shapes == {"hidden": (5,)}
    observation, before = torch.randn(6, 3), torch.randn(6, 5)
    with torch.no_grad():
        parameters, value, (after,) = network(observation, (before,))
        expected = network.cell(network.trunk(observation), before)
        assert torch.equal(after, expected)
        both = network.head.weight @ after.T
    np.testing.assert_allclose(parameters, (both[:-1].T + network.head.bias[:-1]).detach(), atol=1e-6)
    np.testing.assert_allclose(value, (both[-1] + network.head.bias[-1]).detach(), atol=1e-6)


@pytest.mark.parametrize(
    ("side", "kernels"), [(84, [8, 4, 3]), (36, [8, 4, 3]), (35, [4, 3]), (10, [4, 3]), (9, [3]), (3, [3])]
)
def test_convolutions_suit_the_size_of_the_image(side: int, kernels: list[int]) -> None:
    trunk = Convolutions(image(side, side + 2, 3), hidden=(16,))
    found = [layer.kernel_size[0] for layer in trunk.convolutions if isinstance(layer, torch.nn.Conv2d)]
    assert found == kernels
    with torch.no_grad():
        assert trunk(torch.zeros(2, side, side + 2, 3, dtype=torch.uint8)).shape == (2, trunk.width) == (2, 16)


def test_the_default_convolutions_are_those_of_the_nature_paper() -> None:
    layers = [layer for layer in Convolutions(image(84, 84, 4)).convolutions if isinstance(layer, torch.nn.Conv2d)]
    found = [(layer.in_channels, layer.out_channels, *layer.kernel_size[:1], *layer.stride[:1]) for layer in layers]
    assert found == [(4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)]


def test_channels_stand_where_the_argument_says() -> None:
    last, first, grey = Convolutions(image(12, 14, 3)), Convolutions(image(3, 12, 14), "first"), image(12, 14)
    first.load_state_dict(last.state_dict())
    seen = torch.randint(0, 256, (5, 12, 14, 3), dtype=torch.uint8)
    with torch.no_grad():
        np.testing.assert_allclose(last(seen), first(seen.permute(0, 3, 1, 2)), atol=1e-6)
        one = Convolutions(image(12, 14, 1))
        without = Convolutions(grey)
        without.load_state_dict(one.state_dict())
        np.testing.assert_allclose(one(seen[..., :1]), without(seen[..., 0]), atol=1e-6)


def test_bytes_are_scaled_and_floats_are_not() -> None:
    bytes_, floats = Convolutions(image(12, 12, 1)), Convolutions(image(12, 12, 1, dtype=FLOAT32))
    floats.load_state_dict(bytes_.state_dict())
    seen = torch.randint(0, 256, (5, 12, 12, 1), dtype=torch.uint8)
    with torch.no_grad():
        np.testing.assert_allclose(bytes_(seen), floats(seen.float() / 255), atol=1e-6)


@pytest.mark.parametrize(
    ("space", "arguments", "told"),
    [
        (Box((4,), FLOAT32), {}, "convolutions take a Box of shape (height, width) or (height, width, channels)"),
        (Discrete(3), {}, "convolutions take a Box"),
        (image(2, 9, 3), {}, "2 x 9 pixels: too small for convolutions, which need 3 pixels a side"),
        (
            image(4, 84, 84),
            {"channels": "first", "filters": [[8, 85, 1]]},
            "84 x 84 pixels before filter 0, [8, 85, 1]",
        ),
        (image(20, 20, 1), {"filters": [[8, 8, 4], [8, 8, 1]]}, "4 x 4 pixels before filter 1, [8, 8, 1]: too small"),
        (image(20, 20, 1), {"filters": [[8, 8]]}, "filter 0, [8, 8]: [channels out, kernel, stride], whole numbers"),
        (image(20, 20, 1), {"filters": [[8, 0, 1]]}, "filter 0, [8, 0, 1]: [channels out, kernel, stride], whole"),
        (image(20, 20, 1), {"channels": "middle"}, "channels 'middle': there are 'first' and 'last'"),
    ],
)
def test_images_that_no_convolution_takes_are_refused_by_name(space: Any, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(told)):
        Convolutions(space, **arguments)


@pytest.mark.parametrize("hidden", [(0,), (8, -1), (2.5,), ("8",)])
def test_layers_without_a_width_are_refused(hidden: Any) -> None:
    with pytest.raises(ValueError, match=r"hidden layers of the widths .*: each is a whole number above 0"):
        Mlp(3, hidden)


@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1e-2, 1.0])
def test_many_rows_answer_as_few_do_relative_to_the_largest_however_small_all_are(scale: float) -> None:
    torch.manual_seed(0)
    trunk = Mlp(4, (64, 64))
    with torch.no_grad():
        for layer in (trunk[0], trunk[2]):
            layer.bias.zero_()
    forward = numpy_layers(trunk)
    observation = (scale * torch.randn(256, 4)).numpy()
    many, few = forward(observation), np.concatenate([forward(part) for part in np.split(observation, 32)])
    assert np.abs(many - few).max() <= 2e-6 * np.abs(few).max()
