//! Charts: one for each workload, files per second of every peer, on a logarithmic axis.
//!
//! They are drawn for both light and dark pages: the background is transparent, the ink is a colour
//! that the image's own style sheet chooses by what the reader prefers, and the colours of the
//! bars stand out on either.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::summary::Row;
use crate::peer::Peer;
use crate::workload::catalog::Workload;

pub(super) const WIDTH: u32 = 860;
pub(super) const HEIGHT: u32 = 380;

/// Stands for "the colour of text" until the picture is finished.
pub(super) const INK: RGBColor = RGBColor(1, 2, 3);
const INK_TEXT: &str = "#010203";

/// The replacement of the stand-in.
const STYLE: &str = "<style>.i{fill:#24292f}.s{stroke:#24292f}\
@media(prefers-color-scheme:dark){.i{fill:#d0d7de}.s{stroke:#d0d7de}}</style>";

/// A chart for each workload that has rows: its name, and an SVG document.
pub fn draw(rows: &[Row]) -> Result<Vec<(String, String)>> {
    let mut workloads: Vec<Workload> = rows.iter().map(|row| row.workload).collect();
    workloads.dedup();
    workloads
        .into_iter()
        .map(|workload| {
            let of_it: Vec<&Row> = rows.iter().filter(|row| row.workload == workload).collect();
            Ok((workload.name(), one(&workload.name(), &of_it)?))
        })
        .collect()
}

fn one(title: &str, rows: &[&Row]) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        paint(&area, title, rows).map_err(|error| anyhow!("draw {title}: {error}"))?;
        area.present().map_err(|error| anyhow!("draw {title}: {error}"))?;
    }
    Ok(themed(&svg))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn paint(
    area: &Area,
    title: &str,
    rows: &[&Row],
) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let mut phases: Vec<&str> = rows.iter().map(|row| row.phase.as_str()).collect();
    phases.dedup();
    let mut peers: Vec<Peer> = rows.iter().map(|row| row.peer).collect();
    peers.sort();
    peers.dedup();
    let highest = rows.iter().map(|row| row.files_per_sec).fold(1.0, f64::max);
    let lowest = rows.iter().map(|row| row.files_per_sec).fold(highest, f64::min).max(1e-3);
    // Whole decades, so that a bar's height can be read.
    let (bottom, top) = (decade_below(lowest), highest * 3.0);

    let font = ("sans-serif", 14).into_font().color(&INK);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{title}: files per second"), ("sans-serif", 17).into_font().color(&INK))
        .margin(10)
        .x_label_area_size(54)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..phases.len() as f64, (bottom..top).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .axis_style(INK)
        .bold_line_style(INK.mix(0.2))
        .light_line_style(TRANSPARENT)
        .label_style(font.clone())
        .y_label_formatter(&|value| decade_label(*value))
        .draw()?;

    let bar = 0.84 / peers.len() as f64;
    for row in rows {
        let (Some(group), Some(place)) = (
            phases.iter().position(|phase| *phase == row.phase),
            peers.iter().position(|peer| *peer == row.peer),
        ) else {
            continue;
        };
        let left = group as f64 + 0.08 + place as f64 * bar;
        let corners = [(left, bottom), (left + bar * 0.92, row.files_per_sec.max(bottom))];
        chart.draw_series([Rectangle::new(corners, colour(row.peer).filled())])?;
        let above = (left + bar * 0.46, row.files_per_sec.max(bottom) * 1.04);
        let label = Text::new(short(row.files_per_sec), above, centred(11, VPos::Bottom));
        chart.draw_series([label])?;
    }
    legend(area, &phases, &peers)
}

/// Phase names below their groups, and peers with their colours at the foot.
fn legend(
    area: &Area,
    phases: &[&str],
    peers: &[Peer],
) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let (left, right) = (74.0, f64::from(WIDTH) - 10.0);
    let each = (right - left) / phases.len() as f64;
    let style = ("sans-serif", 14).into_font().color(&INK);
    for (i, phase) in phases.iter().enumerate() {
        let x = left + (i as f64 + 0.5) * each;
        area.draw(&Text::new(
            (*phase).to_owned(),
            (x as i32, HEIGHT as i32 - 58),
            centred(14, VPos::Top),
        ))?;
    }
    let mut x = left as i32;
    for peer in peers {
        let y = HEIGHT as i32 - 30;
        area.draw(&Rectangle::new([(x, y), (x + 12, y + 12)], colour(*peer).filled()))?;
        area.draw(&Text::new(peer.to_string(), (x + 17, y - 1), style.clone()))?;
        x += 36 + peer.name().len() as i32 * 9;
    }
    Ok(())
}

/// Text in the colour of ink, centred on its position.
fn centred(size: u32, vertical: VPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK).pos(Pos::new(HPos::Center, vertical))
}

/// Colours that stand out on white and on near-black, and from each other in common forms of
/// colour blindness.
fn colour(peer: Peer) -> RGBColor {
    match peer {
        Peer::Cffs => RGBColor(0, 114, 178),
        Peer::Ext4 => RGBColor(213, 94, 0),
        Peer::Xfs => RGBColor(0, 158, 115),
        Peer::Btrfs => RGBColor(204, 121, 167),
        Peer::Null => RGBColor(128, 128, 128),
        Peer::Library => RGBColor(0, 160, 200),
        Peer::CffsNoEmbed => RGBColor(86, 180, 233),
        Peer::CffsNoInline => RGBColor(120, 140, 200),
        Peer::CffsNoGroups => RGBColor(140, 140, 140),
        Peer::CffsPlain => RGBColor(160, 110, 80),
        Peer::CffsNoJournal => RGBColor(0, 90, 140),
        Peer::CffsJournalDevice => RGBColor(90, 60, 150),
    }
}

fn decade_below(value: f64) -> f64 {
    10f64.powf((value * 0.8).log10().floor())
}

/// Only decades are labelled: the lines between them crowd towards the top.
fn decade_label(value: f64) -> String {
    let exponent = value.log10();
    let is_decade = (exponent - exponent.round()).abs() < 1e-6;
    if is_decade { short(value) } else { String::new() }
}

/// A number that fits over a bar.
pub(super) fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 1e3 => format!("{:.1}k", v / 1e3),
        v if v >= 10.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// Gives the stand-in colour its two meanings, and the picture its style sheet.
pub(super) fn themed(svg: &str) -> String {
    let svg = svg
        .replace(&format!("fill=\"{INK_TEXT}\""), "class=\"i\"")
        .replace(&format!("stroke=\"{INK_TEXT}\""), "class=\"s\"");
    match svg.find("xmlns=").and_then(|at| svg[at..].find('>').map(|end| at + end + 1)) {
        Some(after) => format!("{}{STYLE}{}", &svg[..after], &svg[after..]),
        None => svg,
    }
}
