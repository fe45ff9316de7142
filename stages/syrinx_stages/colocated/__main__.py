"""`python -m syrinx_stages.colocated TALKER.json CODEC.json`: one talker and one codec replica in one process."""

from syrinx_stages.runtime.signals import exit_on_signals

if __name__ == "__main__":
    exit_on_signals()
    from syrinx_stages.runtime.process import run

    run("colocated", "syrinx_stages.colocated.service:build", ("talker", "codec"))
