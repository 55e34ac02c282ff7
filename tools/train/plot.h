// SPDX-License-Identifier: Apache-2.0
//
// One plot of a page. Lines are an SVG that is stretched to the available room, labels are HTML
// next to it, so that lines keep their width and letters their size on a phone. Pure functions.
// Thread rule: any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sherd::tools {

struct Series {
  const char* name = "";       // Shown in the legend, unless empty.
  const char* css_class = "";  // Determines the colour.
  std::vector<std::pair<double, double>> points{};  // All finite.
  // Whether to draw a dot at each point.
  bool dots = false;
};

struct Plot {
  const char* title = "";
  double x_high = 1;  // The axis begins at 0.
  const char* x_name = "step";
  std::vector<Series> series{};
};

// A <figure> with the classes of the style of page_html().
std::string plot_html(const Plot& plot);

// A whole page that needs nothing from the network, with light and dark colours. `style` is CSS that
// the page has beside that of pages and plots, `body` HTML; a title that is shown is in the body.
struct Page {
  std::string title = {};
  std::string style = {};
  std::string body = {};
};
std::string page_html(const Page& page);

// At most about `count` round numbers (1, 2 or 5 times a power of ten apart) inside [low, high],
// ascending. REQUIRES: low < high, count >= 1.
std::vector<double> round_ticks(double low, double high, int count);

// "0.002", "150", "20k", "1.5M": short enough for an axis.
std::string tick_label(double value);

}  // namespace sherd::tools
