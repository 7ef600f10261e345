//! What a benchmark prints: a table for people, one JSON object for programs, a page with plots.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::{BenchError, failed};

/// One run, as `--json` prints it.
#[derive(Serialize)]
pub struct Report<Row: Serialize> {
    /// Which benchmark.
    pub bench: &'static str,
    /// Version of the program.
    pub version: &'static str,
    /// Kernel release.
    pub kernel: String,
    /// Processor model.
    pub cpu: String,
    /// The command that made it.
    pub command: String,
    /// The figures.
    pub rows: Vec<Row>,
}

impl<Row: Serialize> Report<Row> {
    /// A report of these figures on this machine.
    pub fn new(bench: &'static str, rows: Vec<Row>) -> Self {
        let uname = rustix::system::uname();
        let kernel = uname.release().to_string_lossy().into_owned();
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let cpu = cpu.map_or_else(|| "unknown".to_owned(), |(_, model)| model.trim().to_owned());
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let command = format!("forebay {}", arguments.join(" "));
        Self { bench, version: env!("CARGO_PKG_VERSION"), kernel, cpu, command, rows }
    }

    /// As one line of JSON.
    ///
    /// # Errors
    /// When a figure is not a number.
    pub fn json(&self) -> Result<String, BenchError> {
        serde_json::to_string(self).map_err(failed)
    }
}

/// A curve of a plot: its name, and a value for each step of the axis.
pub struct Curve {
    /// What the legend says.
    pub name: &'static str,
    /// Colour, as in CSS.
    pub colour: &'static str,
    /// The values, in the unit of the axis.
    pub values: Vec<f64>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 56.0;

/// Writes a self-contained page: title, plot, and the table as preformatted text.
///
/// # Errors
/// When the file cannot be written.
pub fn write_html(
    path: &Path,
    title: &str,
    about: &str,
    steps: &[String],
    curves: &[Curve],
    table: &str,
) -> Result<(), BenchError> {
    let mut page = String::new();
    let plot = plot(steps, curves);
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{font:16px/1.5 sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem;color:#222}}\
         pre{{overflow-x:auto;background:#f6f6f6;padding:1rem}}text{{font:12px sans-serif;fill:#444}}</style>\n\
         <h1>{title}</h1>\n<p>{}</p>\n{plot}\n<pre>{}</pre>\n</html>\n",
        escape(about),
        escape(table),
    )
    .map_err(failed)?;
    std::fs::write(path, page)
        .map_err(|error| BenchError(format!("cannot write {}: {error}; choose another file for --html", path.display())))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[expect(clippy::cast_precision_loss, reason = "a plot has few steps")]
fn plot(steps: &[String], curves: &[Curve]) -> String {
    let top = curves.iter().flat_map(|curve| &curve.values).fold(1.0_f64, |top, value| top.max(*value)) * 1.05;
    let x = |at: usize| MARGIN + (WIDTH - 2.0 * MARGIN) * at as f64 / (steps.len().max(2) - 1) as f64;
    let y = |value: f64| HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * value / top;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        let height = y(value);
        let _ = write!(svg, "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{height}\" y2=\"{height}\" stroke=\"#ddd\"/>", WIDTH - MARGIN);
        let _ = write!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{value:.0}</text>", MARGIN - 6.0, height + 4.0);
    }
    for (at, step) in steps.iter().enumerate() {
        let _ =
            write!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>", x(at), HEIGHT - MARGIN + 18.0, escape(step));
    }
    for (place, curve) in curves.iter().enumerate() {
        let points: Vec<String> =
            curve.values.iter().enumerate().map(|(at, value)| format!("{:.1},{:.1}", x(at), y(*value))).collect();
        let colour = curve.colour;
        let _ = write!(svg, "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>", points.join(" "));
        let left = MARGIN + 150.0 * place as f64;
        let _ = write!(svg, "<rect x=\"{left}\" y=\"16\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
        let _ = write!(svg, "<text x=\"{}\" y=\"27\">{}</text>", left + 18.0, escape(curve.name));
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_every_curve_and_no_raw_markup() {
        let curves = [Curve { name: "a<b", colour: "#111", values: vec![1.0, 2.0] }];
        let folder = std::env::temp_dir().join(format!("forebay-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("page.html");
        write_html(&path, "Title", "about & so on", &["1".into(), "2".into()], &curves, "x < y").unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(page.contains("a&lt;b") && page.contains("about &amp; so on") && page.contains("x &lt; y"));
        assert_eq!(page.matches("<polyline").count(), 1);
    }
}
