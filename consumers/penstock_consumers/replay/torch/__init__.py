"""The learner's reader for torch: views as tensors, over `DataLoader` workers and ranks, ahead of time, on a device."""

from penstock_consumers.replay.prefetch import Prefetch
from penstock_consumers.replay.torch.dataset import ReplayDataset
from penstock_consumers.replay.torch.device import to_device
from penstock_consumers.replay.torch.loader import ReplayLoader
from penstock_consumers.replay.torch.tensors import tensors

__all__ = ["Prefetch", "ReplayDataset", "ReplayLoader", "tensors", "to_device"]
