"""`python -m soak`: runs the pipeline under load and faults, and writes results/soak.json and results/soak.md."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec

from soak.report import page, report
from soak.run import Plan, run
from soak.servers import Layout
from syrinx_operator.commands.bench.report import save
from syrinx_operator.resource.stage_config import LocalError
from syrinx_stages.connector.server import RedisServerError, redis_version

RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    """Runs the soak. Returns 1 if a request was lost or its audio differs."""
    defaults = Plan()
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=defaults.minutes, help="duration of the faults (default: 20)")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of requests and faults (default: 1)")
    layouts = ", ".join(Layout)
    parser.add_argument("--redis", type=Layout, default=defaults.layout, help=f"{layouts} (default: {defaults.layout})")
    parser.add_argument(
        "--targets", nargs="*", default=(), help="gateway, talker, codec, primary, replica (default: all)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="output directory (default: bench/results)")
    parser.add_argument("--logs", type=Path, help="keep logs, requests and faults in this new directory")
    arguments = parser.parse_args()
    plan = Plan(
        minutes=arguments.minutes,
        seed=arguments.seed,
        layout=arguments.redis,
        groups=tuple(arguments.targets),
    )
    with tempfile.TemporaryDirectory(prefix="syrinx-soak-") as temporary:
        directory = arguments.logs or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        try:
            outcome = asyncio.run(run(plan, directory))
        except (LocalError, RedisServerError) as error:
            print(f"soak: {error}", file=sys.stderr)
            return 1
        (directory / "requests.json").write_bytes(msgspec.json.encode(outcome.outcomes))
        (directory / "faults.json").write_bytes(msgspec.json.encode(outcome.injected))
    result = report(plan, outcome, redis_version())
    save(result, arguments.results / "soak.json")
    (arguments.results / "soak.md").write_text(page(result), encoding="utf-8")
    print(page(result))
    return 1 if result.lost or result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
