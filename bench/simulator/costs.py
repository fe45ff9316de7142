"""Engine costs by machine. `calibrate` fits them and compares the simulation with measurements."""

from simulator.scenario import Costs, Decoder, line


def fitted_cpu(step: float, per_row: float, codec: float, hop: float, interference: float) -> Costs:
    """The bundled voice on CPU cores; decoder and prefill are the engines' own times (`engines`), as `codec` times."""
    calls = Decoder(codec * 0.0079, codec * 0.0006, codec * 0.0026)
    return Costs(
        step=line(step, per_row),
        eager=calls,
        captured=calls,
        prefill={"CustomVoice": 0.0061, "VoiceDesign": 0.0061, "Base": 0.012},
        prepare={"Base": 0.15},
        reference_frames={"Base": 60},
        hop=hop,
        interference=interference,
    )


def fitted_gpu(
    step: float, per_row: float, prefill: float, call: float, per_frame: float, crowding: float, eager: float
) -> Costs:
    """Returns the costs of a service that decodes 72 frames of left context again in each call, with one GPU for both.

    What a reference costs is part of `prefill`: the talker computes it.
    """
    return Costs(
        step=line(step, per_row),
        eager=Decoder(eager, 0.0, per_frame),
        captured=Decoder(call, 0.0, per_frame),
        prefill={"CustomVoice": prefill, "VoiceDesign": prefill, "Base": prefill},
        context_frames=72,
        crowding=crowding,
    )


CPU2 = fitted_cpu(0.0127, 0.000801, 1.03, 0.0107, 1.03)
"""Two cores with the bundled voice."""
H200_PROTOTYPE = Costs(
    step=((1, 0.0067), (32, 0.00706), (64, 0.0075)),
    eager=Decoder(0.00198, 0.00015, 0.0000465),
    captured=Decoder(0.00198, 0.00015, 0.0000465),
    prefill={"CustomVoice": 0.01, "VoiceDesign": 0.01, "Base": 0.015},
    prepare={"Base": 0.02},
    reference_frames={"Base": 60},
)
"""One H200, 1.7B. Measured of a prototype: 6.7, 7.06 and 7.5 ms a step of 1, 32 and 64 rows; 2.07, 2.35 and 3.27 ms for
1, 4 and 25 frames of one row, 9.9 ms for 4 frames of 32 rows. Prefill and reference are assumed."""
H100_CUSTOMVOICE = fitted_gpu(0.0104, 0.00177, 0.0755, 0.00289, 1.36e-05, 0.126, 0.0151)
"""One H100, 1.7B, preset voices (vllm-omni #3322, profile)."""
H100_BASE = fitted_gpu(0.0119, 3.25e-05, 0.213, 0.0312, 0.000514, 0.225, 0.0394)
"""One H100, 1.7B, voice clones (vllm-omni #3322, after #3306)."""
H20_CUSTOMVOICE = fitted_gpu(0.00821, 0.00177, 0.0712, 0.00282, 1.55e-05, 0.172, 0.00936)
"""One H20, 1.7B, preset voices (vllm-omni #3322)."""
H20_BASE = fitted_gpu(0.0366, 0.000986, 0.358, 0.0636, 0.00028, 0.0995, 0.0483)
"""One H20, 1.7B, voice clones (vllm-omni #3322)."""
