"""Files of API keys."""

from pathlib import Path

from syrinx_operator.commands.key import generate_key


class Keys:
    """A file of API keys, one key for each client."""

    def __init__(self, directory: Path, **limits: dict[str, float]) -> None:
        self.file = directory / "keys.jsonl"
        generated = {name: generate_key(name, **each) for name, each in limits.items()}
        self.keys = {name: key for name, (key, _) in generated.items()}
        self._entries = {name: entry for name, (_, entry) in generated.items()}
        self.write(*limits)

    def write(self, *names: str) -> None:
        """Replaces the file by the entries of these clients."""
        new = self.file.with_name("new")
        new.write_text("".join(self._entries[name] + "\n" for name in names))
        new.replace(self.file)

    def of(self, name: str) -> dict[str, str]:
        """The header that a client sends."""
        return {"Authorization": f"Bearer {self.keys[name]}"}
