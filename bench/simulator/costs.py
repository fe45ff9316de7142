"""What engines were measured to cost, by machine."""

from __future__ import annotations

from simulator.scenario import Costs, Curve, Decoder, line

CPU2 = Costs(
    step=line(0.013, 0.0035),
    eager=Decoder(0.004, 0.0005, 0.0012),
    captured=Decoder(0.004, 0.0005, 0.0012),
    prefill={"CustomVoice": 0.012, "VoiceDesign": 0.012, "Base": 0.02},
    prepare={"Base": 0.1},
    reference_frames={"Base": 40},
    hop=0.002,
)
"""Two cores with the bundled voice."""

H200_PROTOTYPE = Costs(
    step=Curve(((1, 0.0067), (32, 0.00706), (64, 0.0075))),
    eager=Decoder(0.00198, 0.00015, 0.0000465),
    captured=Decoder(0.00198, 0.00015, 0.0000465),
    prefill={"CustomVoice": 0.01, "VoiceDesign": 0.01, "Base": 0.015},
    prepare={"Base": 0.02},
    reference_frames={"Base": 60},
)
