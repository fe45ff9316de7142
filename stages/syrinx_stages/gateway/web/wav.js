// WAV files: mono, 16 bits.

export function wav(samples, rate) {
  const header = new DataView(new ArrayBuffer(44)), size = 2 * samples.length;
  const text = (at, value) => [...value].forEach((each, i) => header.setUint8(at + i, each.charCodeAt(0)));
  text(0, "RIFF");
  header.setUint32(4, 36 + size, true);
  text(8, "WAVEfmt ");
  header.setUint32(16, 16, true);
  header.setUint16(20, 1, true);
  header.setUint16(22, 1, true);
  header.setUint32(24, rate, true);
  header.setUint32(28, 2 * rate, true);
  header.setUint16(32, 2, true);
  header.setUint16(34, 16, true);
  text(36, "data");
  header.setUint32(40, size, true);
  const body = new DataView(new ArrayBuffer(size));
  samples.forEach((each, i) => body.setInt16(2 * i, each, true));
  return new Blob([header, body], {type: "audio/wav"});
}
