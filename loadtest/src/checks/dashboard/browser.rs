//! Chromium, driven over WebDriver.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use thirtyfour::{By, ChromiumLikeCapabilities, DesiredCapabilities, WebDriver};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::harness::await_listening;

/// How long something in the page may take that it does by itself.
const LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs in each document before its own scripts: notes what its policy refused, and what a script of a name or a key would do.
const NOTES: &str = "
    window.violations = [];
    window.alerts = [];
    document.addEventListener('securitypolicyviolation', (event) =>
        window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
    window.alert = (text) => window.alerts.push(String(text));";

/// A browser with one window.
pub(super) struct Browser {
    driver: WebDriver,
    /// chromedriver, which ends with its browser.
    _process: Child,
}

impl Browser {
    /// Starts `chromedriver` at `address`, and Chromium.
    pub(super) async fn start(address: SocketAddr) -> anyhow::Result<Self> {
        // reqwest needs a provider of cryptography even without TLS.
        drop(rustls::crypto::ring::default_provider().install_default());
        let process = Command::new("chromedriver")
            .arg(format!("--port={}", address.port()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("chromedriver can't be run: Debian has it in chromium-driver")?;
        await_listening(address).await.context("chromedriver")?;
        let mut capabilities = DesiredCapabilities::chrome();
        for argument in [
            "--headless=new",
            // Root may have no sandbox.
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--hide-scrollbars",
        ] {
            capabilities.add_arg(argument)?;
        }
        let driver = WebDriver::new(format!("http://{address}"), capabilities).await?;
        let browser = Self {
            driver,
            _process: process,
        };
        browser
            .command(
                "Page.addScriptToEvaluateOnNewDocument",
                json!({ "source": NOTES }),
            )
            .await?;
        Ok(browser)
    }

    /// A command of the Chrome DevTools protocol.
    async fn command(&self, name: &str, parameters: Value) -> anyhow::Result<()> {
        let sent = self.driver.cdp().send_raw(name, parameters).await;
        sent.with_context(|| name.to_owned())?;
        Ok(())
    }

    /// The size of the window in pixels, and the colours that the user prefers.
    pub(super) async fn emulate(
        &self,
        (width, height): (u32, u32),
        scheme: &str,
    ) -> anyhow::Result<()> {
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false
        });
        self.command("Emulation.setDeviceMetricsOverride", metrics)
            .await?;
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.command("Emulation.setEmulatedMedia", media).await
    }

    /// Opens a page.
    pub(super) async fn goto(&self, url: &str) -> anyhow::Result<()> {
        self.driver
            .goto(url)
            .await
            .with_context(|| url.to_owned())?;
        Ok(())
    }

    /// The result of a script, which is the body of a function.
    pub(super) async fn run(&self, script: &str) -> anyhow::Result<Value> {
        self.run_with(script, Vec::new()).await
    }

    /// The same with arguments.
    async fn run_with(&self, script: &str, arguments: Vec<Value>) -> anyhow::Result<Value> {
        let result = self.driver.execute(script, arguments).await;
        let result = result.with_context(|| script.to_owned())?;
        Ok(result.json().clone())
    }

    /// Waits until a script returns true; `what` describes that.
    pub(super) async fn until(&self, what: &str, script: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if self.run(script).await? == Value::Bool(true) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let text = self.run("return document.body.innerText").await?;
                bail!(
                    "the page does not show after {LIMIT:?}: {what}\n{}",
                    text.as_str().unwrap_or_default()
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Clicks an element, as a user would.
    pub(super) async fn click(&self, selector: &str) -> anyhow::Result<()> {
        // Else it may be below the header, which stays at the top.
        let script = "document.querySelector(arguments[0])?.scrollIntoView({ block: 'center' })";
        self.run_with(script, vec![json!(selector)]).await?;
        let element = self.driver.find(By::Css(selector)).await;
        let element = element.with_context(|| selector.to_owned())?;
        let clicked = element.click().await;
        clicked.with_context(|| selector.to_owned())
    }

    /// Types into an input, in place of what is there.
    pub(super) async fn fill(&self, selector: &str, text: &str) -> anyhow::Result<()> {
        let element = self.driver.find(By::Css(selector)).await;
        let element = element.with_context(|| selector.to_owned())?;
        element.clear().await?;
        element.send_keys(text).await?;
        Ok(())
    }

    /// A picture of the window, as PNG.
    pub(super) async fn screenshot(&self) -> anyhow::Result<Vec<u8>> {
        Ok(self.driver.screenshot_as_png().await?)
    }

    /// Ends the browser.
    pub(super) async fn quit(self) -> anyhow::Result<()> {
        Ok(self.driver.quit().await?)
    }
}
