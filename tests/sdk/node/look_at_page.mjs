// Opens HTML files in a real browser at several widths and says, a JSON line for each, what a reader would meet:
// node look_at_page.mjs FILE WIDTH,WIDTH [FOLDER for pictures]
import { basename, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import chromium from '@sparticuz/chromium'
import puppeteer from 'puppeteer-core'

const [file, widths, pictures] = process.argv.slice(2)
chromium.setGraphicsMode = false
const browser = await puppeteer.launch({
  executablePath: await chromium.executablePath(),
  args: [...chromium.args, '--no-sandbox', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  headless: 'shell',
})
try {
  for (const width of widths.split(',').map(Number)) {
    const page = await browser.newPage()
    const asked = [], problems = []
    page.on('request', (request) => asked.push(request.url()))
    page.on('console', (message) => problems.push(message.text()))
    page.on('dialog', (dialog) => { problems.push(`dialog: ${dialog.message()}`); dialog.dismiss() })
    await page.setViewport({ width, height: 900 })
    await page.goto(pathToFileURL(file).href)
    const seen = await page.evaluate(() => {
      for (const each of document.querySelectorAll('details')) each.open = true
      const wide = [...document.body.querySelectorAll('*')].filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)
      const boxes = [...document.querySelectorAll('p, td, li, dd, pre, h1, h2, h3, summary')]
      return {
        overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        wide: wide.slice(0, 5).map((each) => each.outerHTML.slice(0, 120)),
        invisible: boxes.filter((each) => each.textContent.trim() && !each.getBoundingClientRect().height).map((each) => each.textContent.slice(0, 80)),
        text: document.body.innerText,
      }
    })
    if (pictures) await page.screenshot({ path: join(pictures, `${basename(file)}-${width}.png`), fullPage: true })
    console.log(JSON.stringify({ width, asked: asked.length, problems, ...seen }))
    await page.close()
  }
} finally {
  await browser.close()
}
