"""How a policy behaves: what is made of a network's answer before an action is drawn from it and sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from penstock_schemas.errors import PolicyError, PolicyRejectedError

MAPPINGS = ("clip", "rescale", "squash")
# Far wider than what makes sense, and far from where a float32 overflows.
_LIMITS = {"epsilon": (0.0, 1.0), "temperature": (1e-30, 1e30), "noise": (0.0, 1e30)}


@dataclass(frozen=True)
class Behaviour:
    """What is recorded as an action's log-probability is that under the whole of it.

    Raises `PolicyError` for a value that is none of its kind, or out of range.

    Attributes:
        mask: the info that says which choices an env allows; None for none.
        mapping: how a float that was drawn becomes the one sent: "clip" into its bounds; "rescale", clipped from
            [-1, 1] and scaled into its bounds; "squash", by tanh into its bounds.
        epsilon: with which probability a choice is made at random, else the best one is taken; each component of an
            action chooses by itself. None draws choices by their logits.
        temperature: that logits are divided by, 1e-30 to 1e30. A Gaussian's variance is multiplied by it, which is
            the same: the density to the power of 1 / temperature.
        noise: the standard deviation of normal noise that is added to floats, 0 to 1e30.
        parameters: whether the parameters of what was drawn from are recorded.
        final_value: whether the value of an episode's last observation is recorded.

    `epsilon`, `temperature` and `noise` act until a version of the policy brings its own.
    """

    mask: str | None = None
    mapping: str = "clip"
    epsilon: float | None = None
    temperature: float = 1.0
    noise: float = 0.0
    parameters: bool = False
    final_value: bool = False

    def __post_init__(self) -> None:
        # What is read from JSON is of any type.
        mask: Any = self.mask
        if mask is not None and not (isinstance(mask, str) and mask):
            raise PolicyError(f"behaviour: mask {mask!r}: use the name of an info, or null")
        if self.mapping not in MAPPINGS:
            raise PolicyError(f"behaviour: mapping {self.mapping!r}: use one of {', '.join(MAPPINGS)}")
        for name in ("parameters", "final_value"):
            if not isinstance(getattr(self, name), bool):
                raise PolicyError(f"behaviour: {name} {getattr(self, name)!r}: use true or false")
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if value is None and name == "epsilon":
                continue
            # A bool is a number to Python; NaN is in no range.
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise PolicyError(f"behaviour: {name} {value!r}: use a number from {least:g} to {most:g}")
            # One way to write it: equal behaviours are to be equal texts.
            object.__setattr__(self, name, float(value))

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Self:
        """Read what `to_json` describes, or a part of it; raises `PolicyError` for a key or a value that it has not."""
        if not isinstance(described, Mapping):
            raise PolicyError(f"behaviour {described!r}: use a mapping with some of {_names()}")
        unknown = sorted(described.keys() - {field.name for field in fields(cls)}, key=str)
        if unknown:
            raise PolicyError(f"behaviour: unknown {', '.join(map(repr, unknown))}: use some of {_names()}")
        return cls(**described)

    def to_json(self) -> dict[str, Any]:
        """Describe it whole, defaults included."""
        return asdict(self)

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """Make the behaviour of a version that has these settings; those that are not its own are the user's.

        Raises `PolicyRejectedError` for an epsilon, a temperature or a noise that is none.
        """
        try:
            return replace(self, **{name: settings[name] for name in _LIMITS if name in settings})
        except PolicyError as error:
            raise PolicyRejectedError("settings", str(error)) from error


def _names() -> str:
    return ", ".join(field.name for field in fields(Behaviour))
