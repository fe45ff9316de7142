"""`python -m syrinx_stages.codec CONFIG.json`: one codec replica."""

from syrinx_stages.runtime.early import leave_on_signals

if __name__ == "__main__":
    leave_on_signals()
    from syrinx_stages.runtime.process import run

    run("codec", "syrinx_stages.codec.service")
