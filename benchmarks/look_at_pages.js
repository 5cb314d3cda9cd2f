// Looks at pages of lingeronnx in a headless Chromium: at 400, 1280 and 1920 px, light and dark, with axe-core's rules.
//
//     npm install axe-core playwright-core      (in any folder: MODULES is its node_modules; Debian has chromium)
//     node benchmarks/look_at_pages.js MODULES PICTURES PAGE.html ...
//
// PICTURES/NAME_400_light.png and so on show the first screens, NAME_400_light_all.png the whole page. First paint is printed, and
// the time from a click on the third node of the network to the next frame. The exit code is 1 where axe-core finds a violation, a
// script fails, the page asks for anything outside, is wider than the window, or a button does not copy what it stands by.
const fs = require('fs'), path = require('path');
const {pathToFileURL} = require('url');
const [modules, pictures, ...pages] = process.argv.slice(2);
const {chromium} = require(path.resolve(modules, 'playwright-core'));
const axe = fs.readFileSync(path.resolve(modules, 'axe-core', 'axe.min.js'), 'utf8');
const CHROMIUM = process.env.CHROMIUM || '/usr/bin/chromium';

async function look(browser, file, width, scheme) {
  const faults = [], address = pathToFileURL(path.resolve(file)).href;
  const context = await browser.newContext({viewport: {width, height: 1400}, colorScheme: scheme, bypassCSP: true});
  const page = await context.newPage();
  page.on('pageerror', e => faults.push(e.message));
  page.on('console', m => { if (m.type() === 'error') faults.push(m.text()); });
  page.on('request', r => { if (r.url() !== address) faults.push(`asks for ${r.url()}`); });
  await page.goto(address);
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document));
  for (const v of found.violations) faults.push(`${v.id}: ${v.help}: ${v.nodes.length} times, first ${v.nodes[0].html.slice(0, 160)}`);
  const [wide, high] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.scrollHeight]);
  if (wide > width) faults.push(`it is ${wide} px wide`);
  const name = `${path.basename(file, '.html')}_${width}_${scheme}`;
  await page.screenshot({path: path.join(pictures, `${name}.png`)});
  await page.screenshot({path: path.join(pictures, `${name}_all.png`), fullPage: true});
  const times = await page.evaluate(async () => {
    const paint = performance.getEntriesByName('first-contentful-paint')[0], node = document.querySelectorAll('#network-svg .node')[2];
    const started = performance.now();
    if (node) node.dispatchEvent(new MouseEvent('click', {bubbles: true}));
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    return `first paint ${paint ? Math.round(paint.startTime) : '-'} ms, click ${node ? Math.round(performance.now() - started) : '-'} ms`;
  });
  const copied = await page.evaluate(() => { const all = [...document.querySelectorAll('button.copy')]; let wrong = 0;
    for (const b of all) { b.click(); if (String(getSelection()).trim() !== b.parentElement.querySelector('code').textContent.trim()) wrong++; } return [all.length, wrong]; });
  if (copied[1]) faults.push(`${copied[1]} buttons do not choose what they stand by`);
  console.log(`${name}: ${high} px high, ${found.passes.length} rules kept, ${copied[0]} copy buttons, ${times}, ${faults.length} faults`);
  faults.forEach(fault => console.log(`  ${fault}`));
  await context.close();
  return faults.length;
}

(async () => {
  fs.mkdirSync(pictures, {recursive: true});
  const browser = await chromium.launch({executablePath: CHROMIUM, args: ['--no-sandbox']});
  let faults = 0;
  for (const file of pages) for (const width of [400, 1280, 1920]) for (const scheme of ['light', 'dark']) faults += await look(browser, file, width, scheme);
  await browser.close();
  process.exit(faults ? 1 : 0);
})();
