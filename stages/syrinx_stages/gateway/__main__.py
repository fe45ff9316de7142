"""`python -m syrinx_stages.gateway CONFIG.json`: one gateway replica."""

from syrinx_stages.runtime.signals import exit_on_signals

if __name__ == "__main__":
    exit_on_signals()
    from syrinx_stages.contract.stages import Stage
    from syrinx_stages.runtime.process import run

    run(Stage.GATEWAY, "syrinx_stages.gateway.http.api:build", all_cells=True)
