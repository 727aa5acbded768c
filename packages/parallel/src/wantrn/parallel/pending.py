"""What ranks compute together while each of them goes on."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pending:
    """The result of a collective that was begun. Who drops it need not wait for it.

    Attributes:
        work: what torch.distributed knows it by; None where there is nothing to wait for.
    """

    result: Tensor
    work: dist.Work | None = None

    def wait(self) -> Tensor:
        """The result, as often as it is asked for.

        Of tensors on a device, what is computed with it is behind it in the device's order, and the
        program itself need not wait.
        """
        if self.work is not None:
            self.work.wait()
        return self.result
