// Looks at pages of lingeronnx in a headless Chromium: at 400, 1280 and 1920 px, light and dark, with axe-core's rules.
//
//     npm install axe-core playwright-core      (in any folder: MODULES is its node_modules; Debian has chromium)
//     python -m benchmarks.report_pages SHARED PAGES
//     node benchmarks/look_at_pages.js MODULES PICTURES PAGE.html ... [--table benchmarks/results/report-pages.md]
//
// PICTURES/NAME_400_light.png and so on show the first screens, NAME_400_light_all.png the whole page. --table writes what was measured
// at 1280 px: size, first paint, layout of the network, and the time from an action to the next frame. The exit code is 1 where axe-core
// finds a violation, a script fails, the page asks for anything outside, is wider than the window, a button does not copy what it stands
// by, or, of networks, the layout takes 5 s or zooming draws less than 20 frames a second.
const fs = require('fs'), os = require('os'), path = require('path');
const {pathToFileURL} = require('url');
const words = process.argv.slice(2), at = words.indexOf('--table'), [, table] = at < 0 ? [] : words.splice(at, 2);
const [modules, pictures, ...pages] = words;
const {chromium} = require(path.resolve(modules, 'playwright-core'));
const axe = fs.readFileSync(path.resolve(modules, 'axe-core', 'axe.min.js'), 'utf8');
const CHROMIUM = process.env.CHROMIUM || '/usr/bin/chromium';
const MAX_LAYOUT_MS = 5000, MIN_FRAMES = 20;

async function look(browser, file, width, scheme) {
  const faults = [], address = pathToFileURL(path.resolve(file)).href;
  const context = await browser.newContext({viewport: {width, height: 1400}, colorScheme: scheme, bypassCSP: true});
  const page = await context.newPage();
  page.on('pageerror', e => faults.push(e.message));
  page.on('console', m => { if (m.type() === 'error') faults.push(m.text()); });
  page.on('request', r => { if (r.url() !== address) faults.push(`asks for ${r.url()}`); });
  await page.goto(address);
  await page.waitForFunction(() => !document.getElementById('network') || document.querySelector('#network-svg[data-layout-ms]'), null, {timeout: 120000});
  const figures = await page.evaluate(measure);
  if (figures.layout >= MAX_LAYOUT_MS) faults.push(`the layout takes ${figures.layout} ms`);
  if (figures.frames < MIN_FRAMES) faults.push(`zooming draws ${figures.frames} frames a second`);
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document));
  for (const v of found.violations) faults.push(`${v.id}: ${v.help}: ${v.nodes.length} times, first ${v.nodes[0].html.slice(0, 160)}`);
  const [wide, high] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.scrollHeight]);
  if (wide > width) faults.push(`it is ${wide} px wide`);
  const name = `${path.basename(file, '.html')}_${width}_${scheme}`;
  await page.screenshot({path: path.join(pictures, `${name}.png`)});
  await page.screenshot({path: path.join(pictures, `${name}_all.png`), fullPage: true});
  const [buttons, wrong] = await page.evaluate(tryCopying);
  if (wrong) faults.push(`${wrong} buttons do not choose what they stand by`);
  console.log(`${name}: ${high} px high, ${found.passes.length} rules kept, ${buttons} copy buttons, ${faults.length} faults, ${JSON.stringify(figures)}`);
  faults.forEach(fault => console.log(`  ${fault}`));
  await context.close();
  return {file, width, scheme, figures, faults: faults.length};
}

// In the page: times in ms from an action to the frame that shows it, and frames per second while zooming.
async function measure() {
  const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  const timed = async act => { const started = performance.now(); act(); await frame(); return Math.round(performance.now() - started); };
  const paint = performance.getEntriesByName('first-contentful-paint')[0], svg = document.getElementById('network-svg'), figures = {paint: paint && Math.round(paint.startTime)};
  if (!svg) return figures;
  const box = svg.getBoundingClientRect(), middle = {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2}, press = key => svg.dispatchEvent(new KeyboardEvent('keydown', {key}));
  figures.nodes = charts.readData('network').nodes.length;
  figures.layout = Number(svg.dataset.layoutMs);
  figures.select = await timed(() => press('n'));
  const search = document.querySelector('#network-host input'), colors = document.querySelector('#network-host select');
  figures.search = await timed(() => { search.value = 'conv'; search.dispatchEvent(new Event('input')); });
  search.value = '';
  search.dispatchEvent(new Event('input'));
  figures.color = await timed(() => { colors.selectedIndex = 1; colors.onchange(); });
  colors.selectedIndex = 0;
  colors.onchange();
  await frame();
  press('0');
  await frame();
  const started = performance.now();
  let frames = 0;
  while (performance.now() - started < 2000) {
    svg.dispatchEvent(new WheelEvent('wheel', {deltaY: frames % 80 < 40 ? -60 : 60, ...middle, cancelable: true}));
    await frame();
    frames += 1;
  }
  figures.frames = Math.round(frames / ((performance.now() - started) / 1000));
  press('0');
  await frame();
  return figures;
}

// In the page: [number of copy buttons, number of those that do not select the command beside them].
function tryCopying() {
  document.querySelectorAll('details').forEach(details => { details.open = true; });
  const all = [...document.querySelectorAll('button.copy')], wrong = all.filter(button => { button.click(); return String(getSelection()).trim() !== button.parentElement.querySelector('code').textContent.trim(); });
  return [all.length, wrong.length];
}

function writeTable(results) {
  const rows = results.filter(({width, scheme}) => width === 1280 && scheme === 'light').map(({file, figures}) => {
    const cells = [path.basename(file, '.html'), figures.nodes, (fs.statSync(file).size / 1e6).toFixed(2), figures.paint, figures.layout, figures.select, figures.search, figures.color, figures.frames];
    return `| ${cells.map(cell => cell ?? '-').join(' | ')} |`;
  });
  const faults = results.reduce((sum, result) => sum + result.faults, 0), load = os.loadavg()[0].toFixed(1);
  fs.writeFileSync(table, `# Report pages

\`python -m benchmarks.report_pages\` wrote the pages, \`node benchmarks/look_at_pages.js\` opened each in a headless Chromium at 400, 1280
and 1920 px, light and dark. ${results.length} openings, ${faults} faults: rules of axe-core, errors of scripts, requests, overflow, copy buttons, limits of
layout and zoom. Figures are of 1280 px, light, on ${os.cpus()[0].model} with ${os.cpus().length} CPUs and a load of ${load}; ${new Date().toISOString().slice(0, 10)}.

Times are milliseconds: from the start to the first paint, of the layout, and from selecting a node, a search and another coloring to the next
frame. Zoom is frames a second.

| page | nodes | MB | first paint | layout | select | search | color | zoom |
|---|---|---|---|---|---|---|---|---|
${rows.join('\n')}
`);
}

(async () => {
  fs.mkdirSync(pictures, {recursive: true});
  const browser = await chromium.launch({executablePath: CHROMIUM, args: ['--no-sandbox']});
  const results = [];
  for (const file of pages) for (const width of [400, 1280, 1920]) for (const scheme of ['light', 'dark']) results.push(await look(browser, file, width, scheme));
  await browser.close();
  if (table) writeTable(results);
  process.exit(results.some(result => result.faults) ? 1 : 0);
})();
