// Types queries into the search of the site that `make docs` builds, English and Chinese, in a headless Chromium.
//
//     npm install playwright-core                   (in any folder: MODULES is its node_modules; Debian has chromium)
//     node benchmarks/search_site.js MODULES build/site [QUERY ...]
//
// Prints the number of pages that each query finds, and the first of them. The exit code is 1 where one finds none. Queries
// with Chinese characters are typed into the Chinese site, others into the English one.
const path = require('path');
const [modules, site, ...named] = process.argv.slice(2);
const {chromium} = require(path.resolve(modules, 'playwright-core'));
const CHROMIUM = process.env.CHROMIUM || '/usr/bin/chromium';
const QUERIES = [
  '量化参数', '校准集', '逐层', '二的幂', '模拟器', '定点', '精度', '打包', 'softmax 芯片',
  'quantization parameters', 'calibration', 'per layer', 'power of two', 'simulator', 'fixed point', 'chip-ready',
];

async function search(page, query) {
  const folder = /[\u3400-\u9fff]/.test(query) ? path.join(site, 'zh') : site;
  await page.goto(`file://${path.resolve(folder, 'index.html')}`);
  const field = page.locator('input[name=q]').first();
  await field.click();
  await field.pressSequentially(query, {delay: 20});
  await field.press('Enter');
  await page.waitForURL(/search\.html/);
  // The summary stands there, with the number of pages, when the search is over.
  await page.waitForFunction(() => {
    const summary = document.querySelector('#search-results .search-summary');
    return summary && /\d|did not|没有|未/.test(summary.innerText);
  }, null, {timeout: 20000});
  return page.$$eval('#search-results ul.search > li > a', links => links.map(link => link.innerText));
}

(async () => {
  const args = ['--no-sandbox', '--disable-gpu', '--allow-file-access-from-files'];
  const browser = await chromium.launch({executablePath: CHROMIUM, args});
  const page = await (await browser.newContext({viewport: {width: 1280, height: 900}})).newPage();
  let failed = 0;
  for (const query of named.length ? named : QUERIES) {
    const titles = await search(page, query);
    const first = titles.slice(0, 3).join('; ');
    console.log(`${query}: ${titles.length} pages${first ? `: ${first}` : ''}`);
    if (!titles.length) failed += 1;
  }
  await browser.close();
  console.log(`${failed} queries without a page`);
  process.exitCode = failed ? 1 : 0;
})();
