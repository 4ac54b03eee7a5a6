// Numbers and times as people read them.

export const number = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(value < 0.1 ? 2 : 1) : number(value);
}

export function milliseconds(value) {
  if (value === null || value === undefined || value < 0) return "–";
  if (value < 1) return `${value.toFixed(2)} ms`;
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return value < 60000 ? `${(value / 1000).toFixed(value < 10000 ? 2 : 1)} s` : duration(value / 1000);
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

const twoDigits = (value) => String(value).padStart(2, "0");

export function clock(seconds, exact = false) {
  const date = new Date(seconds * 1000);
  const text = `${twoDigits(date.getHours())}:${twoDigits(date.getMinutes())}`;
  return exact ? `${text}:${twoDigits(date.getSeconds())}` : text;
}

export function day(seconds) {
  const date = new Date(seconds * 1000);
  const today = new Date();
  const sameDay = date.toDateString() === today.toDateString();
  const written = `${date.getFullYear()}-${twoDigits(date.getMonth() + 1)}-${twoDigits(date.getDate())}`;
  return sameDay ? clock(seconds, true) : `${written} ${clock(seconds)}`;
}

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export const short = (id) => (id.length > 24 ? id.slice(0, 8) : id);
