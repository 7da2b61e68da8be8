//! A disk as an SVG picture: its bandwidth from end to end, and its seek times.

use std::fmt::Write;

use cffs_place::disk::Disk;

/// Width, height and margins of a chart, in pixels.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 200.0;
const MARGIN: f64 = 56.0;

/// The picture, as SVG.
pub fn of(disk: &Disk) -> String {
    let charts = [bandwidth(disk), seeks(disk)];
    let charts: Vec<Chart> = charts.into_iter().filter(|chart| !chart.points.is_empty()).collect();
    let (width, each) = (WIDTH + 2.0 * MARGIN, HEIGHT + 2.0 * MARGIN);
    let height = each * charts.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (number, chart) in charts.iter().enumerate() {
        chart.draw(&mut out, each * number as f64);
    }
    out + "</svg>\n"
}

/// A curve over the disk, whose x axis ends at `across`.
struct Chart {
    title: &'static str,
    unit: &'static str,
    across: String,
    /// Fractions of the width, with their values.
    points: Vec<(f64, f64)>,
}

fn bandwidth(disk: &Disk) -> Chart {
    let size = disk.size_bytes as f64;
    let ends = |zone: &cffs_place::disk::Zone| {
        let rate = zone.bytes_per_second / 1e6;
        [(zone.first_byte as f64 / size, rate), (zone.end_byte as f64 / size, rate)]
    };
    Chart {
        title: "Bandwidth over the disk",
        unit: "MB/s",
        across: format!("{:.1} GB", size / 1e9),
        points: disk.zones.iter().flat_map(ends).collect(),
    }
}

fn seeks(disk: &Disk) -> Chart {
    Chart {
        title: "Seeks by distance",
        unit: "ms",
        across: String::from("the whole disk"),
        points: disk.seeks.iter().map(|seek| (seek.distance, seek.ms)).collect(),
    }
}

impl Chart {
    fn draw(&self, out: &mut String, top: f64) {
        let most = self.points.iter().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max) * 1.1;
        let (left, below) = (MARGIN, top + MARGIN + HEIGHT);
        let x = |part: f64| left + part * WIDTH;
        let y = |value: f64| below - value / most * HEIGHT;
        let text = |out: &mut String, x: f64, y: f64, anchor: &str, text: &str| {
            let _ = writeln!(
                out,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
            );
        };
        text(out, left, top + MARGIN - 20.0, "start", self.title);
        for line in 0..=4 {
            let value = most * f64::from(line) / 4.0;
            let _ = writeln!(out, "<path d=\"M{left} {0:.1}h{WIDTH}\" stroke=\"#ddd\"/>", y(value));
            text(out, left - 6.0, y(value) + 4.0, "end", &format!("{value:.1}"));
        }
        text(out, left, below + 20.0, "start", &format!("0 ({})", self.unit));
        text(out, left + WIDTH, below + 20.0, "end", &self.across);
        let line: Vec<String> = self
            .points
            .iter()
            .map(|(part, value)| format!("{:.1},{:.1}", x(*part), y(*value)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f6feb\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        for (part, value) in &self.points {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"#1f6feb\"/>",
                x(*part),
                y(*value)
            );
        }
    }
}
