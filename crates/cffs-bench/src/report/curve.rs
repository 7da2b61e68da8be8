//! Charts of how something grows: lines over sizes, on a logarithmic axis unless these are of one decade.

use anyhow::{Result, anyhow};
use plotters::coord::combinators::LogCoord;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use super::chart::{HEIGHT, INK, WIDTH, short, themed};

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The name of its file.
    pub name: String,
    /// The title.
    pub title: String,
    /// The unit of the sizes.
    pub x_label: &'static str,
    /// The compared lines.
    pub lines: Vec<Line>,
}

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// The label of the line.
    pub name: String,
    /// Sizes, and the figure of each; all above zero.
    pub points: Vec<(f64, f64)>,
}

/// Stand out on white and on near-black, and from each other in common forms of colour blindness.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(128, 128, 128),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// An SVG document.
pub fn draw(chart: &Chart) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        paint(&area, chart).map_err(|error| anyhow!("draw {}: {error}", chart.name))?;
        area.present().map_err(|error| anyhow!("draw {}: {error}", chart.name))?;
    }
    Ok(themed(&svg))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn paint(area: &Area, chart: &Chart) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let all = || chart.lines.iter().flat_map(|line| &line.points);
    let (left, right) = range(all().map(|point| point.0));
    let (bottom, top) = range(all().map(|point| point.1));
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(&chart.title, ("sans-serif", 17).into_font().color(&INK))
        .margin(10)
        .margin_right(220)
        .x_label_area_size(44)
        .y_label_area_size(64);
    let heights = (bottom * 0.8..top * 1.25).log_scale();
    if right < left * 10.0 {
        lines(area, chart, builder.build_cartesian_2d(left..right, heights)?)
    } else {
        let sizes = (left..right * 1.1).log_scale();
        lines(area, chart, builder.build_cartesian_2d(sizes, heights)?)
    }
}

type Plane<X> = Cartesian2d<X, LogCoord<f64>>;

fn lines<'a, X>(
    area: &Area<'a>,
    chart: &Chart,
    mut drawn: ChartContext<'_, SVGBackend<'a>, Plane<X>>,
) -> Result<(), DrawingAreaErrorKind<std::io::Error>>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let font = ("sans-serif", 14).into_font().color(&INK);
    drawn
        .configure_mesh()
        .axis_style(INK)
        .bold_line_style(INK.mix(0.2))
        .light_line_style(TRANSPARENT)
        .label_style(font.clone())
        .x_desc(chart.x_label)
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| label(*value))
        .draw()?;
    for (i, line) in chart.lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        drawn.draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?;
        let dots = line.points.iter().map(|point| Circle::new(*point, 3, colour.filled()));
        drawn.draw_series(dots)?;
        let (x, y) = (WIDTH as i32 - 218, 50 + 22 * i as i32);
        area.draw(&Rectangle::new([(x, y), (x + 12, y + 12)], colour.filled()))?;
        area.draw(&Text::new(line.name.clone(), (x + 17, y - 1), font.clone()))?;
    }
    Ok(())
}

/// Only 1, 2 and 5 of each decade are labelled: those between them crowd towards its end.
fn label(value: f64) -> String {
    let leading = value / 10f64.powf(value.log10().floor());
    let is_labelled = [1.0, 2.0, 5.0, 10.0].iter().any(|digit| (leading - digit).abs() < 1e-3);
    if is_labelled { short(value) } else { String::new() }
}

/// The smallest and the largest, which a logarithmic axis needs to be apart.
fn range(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let lowest = values.clone().fold(f64::INFINITY, f64::min);
    let highest = values.fold(lowest, f64::max);
    (lowest, highest.max(lowest * 1.01))
}
