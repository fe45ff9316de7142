// How drivers in JavaScript report: as report.py describes.
import { readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const { BASE_URL, TEXT, OUT } = process.env;
export const apiUrl = `${BASE_URL}/v1`;
export const text = TEXT;

const seconds = () => Date.now() / 1000;

class Case {
  constructor(name) {
    Object.assign(this, { name, started: seconds(), heard: null, ended: 0, file: "", rate: null, whole: true });
  }
  hear() {
    this.heard ??= seconds();
  }
  save(audio, suffix, rate = null) {
    this.ended = seconds();
    this.rate = rate;
    this.file = `${readdirSync(OUT).length}.${suffix}`;
    writeFileSync(join(OUT, this.file), audio);
  }
}

export class Report {
  cases = [];
  async case(name, run) {
    const speech = new Case(name);
    await run(speech);
    this.cases.push(speech);
  }
  write() {
    writeFileSync(join(OUT, "report.json"), JSON.stringify({ cases: this.cases, version: null }));
  }
}
