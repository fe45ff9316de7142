"""Forward passes by call shape, captured as CUDA graphs on request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from syrinx_stages.codec.forward import ForwardPass
from syrinx_stages.codec.memory import StreamStates, Workspace, WorkspaceSize, split_k_workspace, workspace_size
from syrinx_stages.codec.weights import CodecWeights
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.kernels.recorder import GraphRecorder, Work

MAX_UNCAPTURED = 64
"""Forward passes of uncaptured shapes kept for reuse."""


class GraphCache:
    """Creates, captures and frees forward passes.

    All of them share one workspace, that of the largest shape. When a larger one replaces it, existing graphs keep the
    workspace whose addresses they contain.
    """

    def __init__(self, weights: CodecWeights, states: StreamStates, recorder: GraphRecorder) -> None:
        self._weights, self._states, self._recorder = weights, states, recorder
        self.split_k = split_k_workspace(weights.device)
        self.workspace: Workspace | None = None
        self._graphs: dict[CapturePair, tuple[Work, ForwardPass]] = {}
        self._uncaptured: OrderedDict[CapturePair, ForwardPass] = OrderedDict()

    @property
    def captured(self) -> frozenset[CapturePair]:
        """The captured shapes."""
        return frozenset(self._graphs)

    def compile(self, shapes: Iterable[CapturePair]) -> None:
        """Compiles the kernels of calls of these shapes."""
        with self._recorder.on_stream():
            # Compilation needs no memory, only the types of the arguments.
            workspace = self._new_workspace(WorkspaceSize(1, 1, 1))
            passes = [ForwardPass(self._weights, self._states, workspace, *shape) for shape in shapes]
        launches = {launch.compile_key(): launch for forward in passes for launch in forward.launches}
        self._recorder.compile(list(launches.values()))

    def capture(self, shape: CapturePair) -> ForwardPass:
        """Captures a shape. Must not be called while a call is in flight."""
        with self._recorder.on_stream():
            forward = self._forward_pass(shape)
            # Capturing runs the forward pass once. Padding rows only, so that no stream's state changes.
            forward.upload.zero_()
        self._graphs[shape] = (self._recorder.capture_graph(forward), forward)
        self._uncaptured.pop(shape, None)
        return forward

    def free(self, shapes: Iterable[CapturePair]) -> None:
        """Frees graphs, and the workspace if no other graph uses it. Must not be called while a call is in flight."""
        for shape in shapes:
            self._graphs.pop(shape, None)
        workspaces = [forward.workspace for _, forward in self._graphs.values()]
        if all(workspace is not self.workspace for workspace in workspaces):
            self._uncaptured.clear()
            self.workspace = max(workspaces, key=lambda workspace: workspace.size.activations, default=None)

    def get(self, shape: CapturePair) -> tuple[Work, ForwardPass]:
        """Returns the function that runs a call of this shape, and its forward pass."""
        if shape in self._graphs:
            return self._graphs[shape]
        with self._recorder.on_stream():
            forward = self._forward_pass(shape)
        return forward, forward

    def _forward_pass(self, shape: CapturePair) -> ForwardPass:
        """Returns an uncaptured forward pass in the shared workspace."""
        forward = self._uncaptured.pop(shape, None)
        if forward is None:
            size = workspace_size(self._weights, self._states.layout, *shape)
            forward = ForwardPass(self._weights, self._states, self._fitting_workspace(size), *shape)
        self._uncaptured[shape] = forward
        while len(self._uncaptured) > MAX_UNCAPTURED:
            self._uncaptured.popitem(last=False)
        return forward

    def _fitting_workspace(self, size: WorkspaceSize) -> Workspace:
        """Returns the shared workspace, replaced by a larger one if `size` does not fit."""
        if self.workspace is None or not size.fits_in(self.workspace.size):
            if self.workspace is not None:
                size = WorkspaceSize(*map(max, size, self.workspace.size))
            # Freed before the allocation, to limit the peak.
            self._uncaptured.clear()
            self.workspace = None
            self.workspace = self._new_workspace(size)
        return self.workspace

    def _new_workspace(self, size: WorkspaceSize) -> Workspace:
        return Workspace(size, self.split_k, self._weights.dtype, self._weights.device)
