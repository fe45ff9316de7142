"""Images: sources exist, dependencies are pinned, and the operator does not need torch."""

import json
import re
import tomllib

import pytest

from support.charts import ROOT, objects, one
from syrinx_operator import __version__

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {"operator": ["operator"], "stages": ["stages", "tracing", "clone", "fetch"]}
IMAGES = pytest.mark.parametrize("image", EXTRAS)


def instructions(image):
    """(instruction, argument), continued lines joined."""
    text = re.sub(r"\\\n", " ", (ROOT / "docker" / f"{image}.Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def arguments(image, instruction):
    return [rest for word, rest in instructions(image) if word == instruction]


def final(image):
    """The instructions of the last stage."""
    found = instructions(image)
    return dict(found[max(at for at, (word, _) in enumerate(found) if word == "FROM") :])


def pinned(image):
    lines = [line for line in (ROOT / "docker" / f"{image}.txt").read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def required(extras):
    texts = PROJECT["dependencies"] + [each for extra in extras for each in PROJECT["optional-dependencies"][extra]]
    return {normal(re.match(r"[\w.-]+", text)[0]) for text in texts}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@IMAGES
def test_images_run_unprivileged_and_stop_on_sigterm(image):
    last = final(image)
    assert last["USER"] == "65532:65532"
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert last["ENTRYPOINT"] == "[]"
    assert f"VERSION={__version__}" in arguments(image, "ARG")
    assert "org.opencontainers.image.version" in last["LABEL"]


@IMAGES
def test_bases_are_pinned_by_tag(image):
    defaults = dict(arg.split("=", 1) for arg in arguments(image, "ARG") if "=" in arg)
    for base in arguments(image, "FROM"):
        name = re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], base.split()[0])
        assert re.fullmatch(r"python:3\.\d+-slim-\w+", name) or name in ("cpu", "cuda")


@IMAGES
def test_copied_files_exist_and_are_not_ignored(image):
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for copied in arguments(image, "COPY"):
        *sources, _ = copied.split()
        if sources[0] == "--from=build":
            continue
        for source in sources:
            assert (ROOT / source).exists()
            patterns = [re.escape(keep).replace(r"\*", "[^/]*") for keep in kept]
            within = any(keep.startswith(f"{source}/") for keep in kept)
            assert within or any(re.match(pattern, source) for pattern in patterns), source


@IMAGES
def test_every_dependency_is_pinned(image):
    versions = {normal(name): version for name, version in pinned(image).items()}
    assert required(EXTRAS[image]) <= versions.keys()
    assert f"PIP_CONSTRAINT=/src/docker/{image}.txt" in " ".join(arguments(image, "ENV"))
    assert f".[{','.join(EXTRAS[image])}]" in " ".join(arguments(image, "RUN"))


def test_every_dependency_of_the_vllm_image_is_pinned_to_the_measured_release():
    versions = pinned("stages-vllm")
    assert required(EXTRAS["stages"]) | {"vllm"} <= {normal(name) for name in versions}
    runs = arguments("stages", "RUN")
    taken = [at for at, line in enumerate(runs) if "cp docker/stages-vllm.txt docker/stages.txt" in line]
    assert taken == [1], "before the installation"
    measured = json.loads((ROOT / "bench" / "results" / "engines.json").read_text())
    assert (versions["vllm"], versions["torch"]) == (measured["vllm"], measured["torch"].partition("+")[0])
    header = (ROOT / "docker" / "stages-vllm.txt").read_text().splitlines()[0]
    assert f'"vllm=={versions["vllm"]}"' in header, "the first line shows how to update the file"


def test_both_images_pin_the_same_versions():
    operator, stages = pinned("operator"), pinned("stages")
    assert {name for name in operator.keys() & stages.keys() if operator[name] != stages[name]} == set()


def test_the_operator_image_has_no_data_plane():
    assert not {"torch", "redis", "fastapi"} & pinned("operator").keys()
    assert not [each for each in arguments("operator", "COPY") if each.split()[0] == "stages"]


def test_the_chart_runs_modules_of_the_image():
    container = one(objects("syrinx"), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    begun = " ".join(container["command"])
    imported = arguments("operator", "RUN")[-1]
    assert "syrinx_operator.main" in begun and "syrinx_operator.main" in imported
    pod = one(objects("syrinx"), "Pod")["spec"]["containers"][0]
    assert "syrinx_operator.cluster.watch.selftest" in pod["command"]
    assert "syrinx_operator.cluster.watch.selftest" in imported
