"""What Syrinx does on a GPU, measured: the engines, the service end to end, and a report of both.

Every benchmark is one command (`PYTHONPATH=bench python -m gpu.NAME`), prints a table, and writes a JSON file that
`python -m gpu.report` gathers. Times in these files are milliseconds, shares fractions, and keys strings:

`gpu.talker` (file `..._talker.json`):
    {"benchmark": "talker", "model": "1.7B, random weights", "gpu": "...",
     "talker_frame_ms": {BATCH: ms},         one frame of every row, from launch to launch in a steady loop, median
     "graph_ms": {PART: {BATCH: ms}},        its work on the device alone: `draw`, `advance`, and both, `frame`
     "floor_ms": {BATCH: ms},                of a frame: arithmetic or memory, whichever is slower
     "first_frame_ms": {BATCH: ms},          admit to first codes, a prompt of 22 tokens
     "launch_gap_ms": {BATCH: ms},           the device idle between two frames in that loop, median
     "launch_gap_p99_ms": {BATCH: ms},
     "kernels": [{"name": "...", "count": n, "ms": ms}, ...],   of a frame of 32 rows, the longest first: the time
                                             saved without that part
     "kernels_batch_1": the same of one row,
     "precision": {MODEL: {VARIANT: {FIGURE: value}}}}          errors and shares of equal codes, see `gpu.precision`

`gpu.codec` (file `..._codec.json`):
    {"benchmark": "codec", "model": "...", "gpu": "...",
     "codec_4frames_ms": {BATCH: ms},        a call of four frames per row, from codes to PCM in host memory
     "floor_ms": {BATCH: ms},                lower bound of that call, by arithmetic or memory bandwidth
     "codec_ms": {FRAMES: {BATCH: ms}},      other shapes
     "graph_ms": {FRAMES: {BATCH: ms}},      the CUDA graph alone
     "kernels": [{"name": "...", "count": n, "ms": ms}, ...],   of a call of 32 rows, the most expensive first
     "kernels_batch_1": the same of one row}

`gpu.service` (file `..._service.json`): see `gpu.results`.

Keys beyond these are kept in the files and left out of the report.
"""
