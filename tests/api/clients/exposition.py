"""A reader of Prometheus text that holds it to its grammar."""

import re

from tests.api.clients.transcript import Client, Reply

LABEL = r'[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"([a-z_]+)(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
ONE = re.compile(LABEL.replace("[a-z_]+", "([a-z_]+)").replace("(?:[^", "((?:[^").replace(')*"', ')*)"'))


class Exposition:
    """The Prometheus text, parsed. A sample is kept by its name and by its labels as text, sorted."""

    def __init__(self, reply: Reply) -> None:
        assert reply.status == 200, reply
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        self.types: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        self.samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.text = reply.body.decode()
        assert self.text.endswith("\n")
        family = ""
        for line in self.text.splitlines():
            if line.startswith("# HELP "):
                _, _, family, said = line.split(" ", 3)
                assert family not in self.helps and said.strip()
                self.helps[family] = said
            elif line.startswith("# TYPE "):
                _, _, family, kind = line.split(" ")
                assert family not in self.types
                self.types[family] = kind
            else:
                match = SAMPLE.fullmatch(line)
                assert match, line
                name, labels, number = match.groups()
                assert re.sub("_(bucket|sum|count)$", "", name) == family or name == family, line
                key = (name, tuple(sorted(ONE.findall(labels or ""))))
                assert key not in self.samples, line
                self.samples[key] = float(number)
        assert set(self.helps) == set(self.types)

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]

    def labelled(self, name: str, label: str = "") -> dict[str, float]:
        """The samples of a series by the value of a label; without one, the series has a single label."""
        found = {}
        for (one, labels), number in self.samples.items():
            if one == name:
                assert label or len(labels) == 1, (name, labels)
                found[dict(labels)[label] if label else labels[0][1]] = number
        return found


def exposition(api: Client, *headers: str) -> Exposition:
    return Exposition(api.get("/v0/metrics", *headers))
