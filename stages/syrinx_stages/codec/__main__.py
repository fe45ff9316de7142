"""`python -m syrinx_stages.codec CONFIG.json`: one codec replica."""

from syrinx_stages.runtime.signals import exit_on_signals

if __name__ == "__main__":
    exit_on_signals()
    from syrinx_stages.contract.stages import Stage
    from syrinx_stages.runtime.process import run

    run(Stage.CODEC, "syrinx_stages.assembly:build_codec")
