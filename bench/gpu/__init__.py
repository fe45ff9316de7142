"""Benchmarks on a GPU: the engines, the service end to end, and a report of both.

Each benchmark is a command (`PYTHONPATH=bench python -m gpu.NAME`) that prints a table and writes a JSON file for
`python -m gpu.report`. In these files times are milliseconds, shares are fractions, and keys are strings:

`gpu.talker` (file `..._talker.json`):
    {"benchmark": "talker", "model": "1.7B, random weights", "gpu": "...",
     "talker_frame_ms": {BATCH: ms},         a frame of every row, between launches in a steady loop, median
     "graph_ms": {PART: {BATCH: ms}},        device time alone of the graphs `draw`, `advance`, and both, `frame`
     "floor_ms": {BATCH: ms},                lower bound of a frame: arithmetic or memory, whichever is slower
     "first_frame_ms": {BATCH: ms},          from admission to the first codes, with a prompt of 22 tokens
     "launch_gap_ms": {BATCH: ms},           device idle between two frames in that loop, median
     "launch_gap_p99_ms": {BATCH: ms},
     "kernels": [{"name": "...", "count": n, "ms": ms}, ...],   of a frame of 32 rows, slowest first: the time saved
                                             without that part
     "kernels_batch_1": the same of one row,
     "precision": {MODEL: {VARIANT: {FIGURE: value}}}}          errors and shares of equal codes, see `gpu.precision`

`gpu.codec` (file `..._codec.json`):
    {"benchmark": "codec", "model": "...", "gpu": "...",
     "codec_4frames_ms": {BATCH: ms},        four new frames of every row, from codes to PCM, both in host memory
     "floor_ms": {BATCH: ms},                lower bound of that call: arithmetic or memory, whichever is slower
     "codec_ms": {FRAMES: {BATCH: ms}},      other shapes
     "graph_ms": {FRAMES: {BATCH: ms}},      device time alone
     "kernels": [{"name": "...", "count": n, "ms": ms}, ...],   of a call of 32 rows, slowest first
     "kernels_batch_1": the same of one row}

`gpu.service` (file `..._service.json`): see `gpu.results`.

Other keys in the files are not part of the report.
"""
