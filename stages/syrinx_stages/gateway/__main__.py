"""`python -m syrinx_stages.gateway CONFIG.json`: one gateway replica."""

from syrinx_stages.runtime.early import leave_on_signals

if __name__ == "__main__":
    leave_on_signals()
    from syrinx_stages.runtime.process import run

    run("gateway", "syrinx_stages.gateway.api")
