// Opens traces of `lingeronnx trace` in speedscope, in a headless Chromium, and looks whether it takes them as they are.
//
//     npm install speedscope playwright-core        (in any folder: MODULES is its node_modules; Debian has chromium)
//     node benchmarks/open_traces.js MODULES PICTURES TRACE.json ...
//
// PICTURES_0.png, PICTURES_1.png ... show what it draws of each lane's first. The exit code is 1 where speedscope says
// that an event does not fit, where a page fails, or where a lane that has slices is not there.
const fs = require('fs'), http = require('http'), path = require('path');
const [modules, pictures, ...traces] = process.argv.slice(2);
const {chromium} = require(path.resolve(modules, 'playwright-core'));
const root = path.resolve(modules, 'speedscope', 'dist', 'release');
const TYPES = {'.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.json': 'application/json'};
const CHROMIUM = process.env.CHROMIUM || '/usr/bin/chromium';

function answer(request, response) {
  const asked = decodeURIComponent(request.url.split('?')[0]);
  const file = asked.startsWith('/trace/') ? traces[+asked.slice(7)] : path.join(root, asked === '/' ? 'index.html' : asked);
  if (!fs.existsSync(file)) { response.writeHead(404); response.end(); return; }
  response.writeHead(200, {'Content-Type': TYPES[path.extname(file)] || 'application/octet-stream'});
  fs.createReadStream(file).pipe(response);
}

async function look(browser, base, index) {
  const events = JSON.parse(fs.readFileSync(traces[index])).traceEvents;
  const lanes = new Set(events.filter(e => e.ph === 'X').map(e => e.tid)).size, faults = [];
  const page = await browser.newPage({viewport: {width: 1400, height: 420}});
  page.on('console', m => { if (/Tried to end|still open|rror/.test(m.text())) faults.push(m.text().slice(0, 200)); });
  page.on('pageerror', e => faults.push(e.message));
  await page.goto(`${base}/#profileURL=${base}/trace/${index}`);
  await page.waitForFunction(() => /\(1\/\d+\)/.test(document.body.innerText), null, {timeout: 60000}).catch(e => faults.push(e.message));
  const shown = /\(1\/(\d+)\)/.exec(await page.innerText('body'));
  if (!shown || +shown[1] !== lanes) faults.push(`${lanes} lanes have slices, ${shown ? shown[1] : 'none'} are shown`);
  await page.waitForTimeout(1000);
  await page.screenshot({path: `${pictures}_${index}.png`});
  console.log(`${traces[index]}: ${events.length} events, ${lanes} lanes, ${faults.length} faults`);
  faults.forEach(fault => console.log(`  ${fault}`));
  return faults.length;
}

(async () => {
  const server = http.createServer(answer);
  await new Promise(done => server.listen(0, '127.0.0.1', done));
  const browser = await chromium.launch({executablePath: CHROMIUM, args: ['--no-sandbox', '--enable-unsafe-swiftshader']});
  let faults = 0;
  for (let index = 0; index < traces.length; index++) faults += await look(browser, `http://127.0.0.1:${server.address().port}`, index);
  await browser.close();
  server.close();
  process.exit(faults ? 1 : 0);
})();
