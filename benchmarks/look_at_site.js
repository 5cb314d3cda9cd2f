// Opens every page of the site that `make docs` builds, in a headless Chromium: 400 and 1280 pixels, light and dark.
//
//     npm install playwright-core                   (in any folder: MODULES is its node_modules; Debian has chromium)
//     node benchmarks/look_at_site.js MODULES build/site PICTURES [PAGE.html ...]
//
// PICTURES/PAGE_400_light.png and so on show the first screen of each. The exit code is 1 where a page is wider than its
// window, a picture or a file is missing, a script fails, or text has less contrast with what is behind it than 3 to 1.
const fs = require('fs'), path = require('path');
const [modules, site, pictures, ...named] = process.argv.slice(2);
const {chromium} = require(path.resolve(modules, 'playwright-core'));
const CHROMIUM = process.env.CHROMIUM || '/usr/bin/chromium';
const SKIPPED = ['genindex.html', 'search.html'];

function pages(folder, below = '') {
  return fs.readdirSync(folder, {withFileTypes: true}).flatMap(entry => {
    const name = path.join(below, entry.name);
    if (entry.isDirectory()) return entry.name.startsWith('_') ? [] : pages(path.join(folder, entry.name), name);
    if (!entry.name.endsWith('.html') || SKIPPED.includes(entry.name)) return [];
    return fs.readFileSync(path.join(folder, entry.name), 'utf8').includes('http-equiv="refresh"') ? [] : [name];
  });
}

// Runs in the page: what is wrong with it, in words.
function faults() {
  const found = [], wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) {
    const far = [...document.querySelectorAll('article *')].filter(e => e.getBoundingClientRect().right > innerWidth
      && !e.closest('.table-wrapper, pre'));
    found.push(`${wide} pixels wider than the window: ${far.slice(0, 2).map(e => e.outerHTML.slice(0, 80)).join(' ')}`);
  }
  for (const image of document.images) if (!image.naturalWidth) found.push(`picture ${image.src} is missing`);
  const light = color => {
    const [r, g, b] = color.match(/[\d.]+/g).map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = e => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (!/, 0\)|transparent/.test(color)) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const pale = new Set();
  for (const e of document.querySelectorAll('article p, article td, article th, article code, article pre, article a')) {
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 3) pale.add(`${e.tagName} ${e.className}: ${e.innerText.slice(0, 30)}`);
  }
  if (pale.size) found.push(`too little contrast: ${[...pale].slice(0, 3).join('; ')}`);
  return found;
}

(async () => {
  fs.mkdirSync(pictures, {recursive: true});
  const browser = await chromium.launch({executablePath: CHROMIUM, args: ['--no-sandbox', '--disable-gpu', '--allow-file-access-from-files']});
  let wrong = 0, seen = 0;
  for (const colorScheme of ['light', 'dark']) for (const width of [400, 1280]) {
    const context = await browser.newContext({viewport: {width, height: 900}, colorScheme});
    const page = await context.newPage(), told = [];
    page.on('pageerror', e => told.push(e.message));
    page.on('requestfailed', r => told.push(`${r.url()} is missing`));
    for (const name of named.length ? named : pages(site)) {
      told.length = 0;
      await page.goto(`file://${path.resolve(site, name)}`);
      const found = [...told, ...await page.evaluate(faults)];
      await page.screenshot({path: path.join(pictures, `${name.replace(/\.html$/, '').replaceAll(path.sep, '-')}_${width}_${colorScheme}.png`)});
      found.forEach(fault => console.log(`${name} at ${width}, ${colorScheme}: ${fault}`));
      seen += 1; wrong += found.length;
    }
    await context.close();
  }
  await browser.close();
  console.log(`${seen} views, ${wrong} faults`);
  process.exitCode = wrong ? 1 : 0;
})();
