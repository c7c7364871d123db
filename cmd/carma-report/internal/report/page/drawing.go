// SPDX-License-Identifier: Apache-2.0

// Package page draws bars and lines over time as SVG, and writes pages for a browser,
// each in one file.
package page

import (
	"fmt"
	"html"
	"io"
	"strings"
)

// Drawing is an SVG that is being made. Its colours are classes, so that a page
// in a browser decides about light and dark; a file of its own brings them along.
type Drawing struct {
	strings.Builder
	width, height int
}

// colours holds for drawings and pages alike.
const colours = `.d-text{fill:#222;font:13px sans-serif}.d-axis{stroke:#999;stroke-width:1}` +
	`.d-a{fill:#3b6fb6}.d-b{fill:#c9d7ea}.d-c{fill:#d9822b}.d-line{fill:none;stroke:#3b6fb6;stroke-width:1.5;` +
	`vector-effect:non-scaling-stroke}.d-grid{stroke:#eee}.d-size{stroke:#555;stroke-dasharray:2 3}` +
	`.d-book{fill:#e9e9e4}.d-sum{fill:none;stroke:#77776f;stroke-dasharray:5 3;vector-effect:non-scaling-stroke}` +
	`.d-all{fill:none;stroke:#222;stroke-width:1.2;vector-effect:non-scaling-stroke}` +
	`.d-j1{fill:#9ecae9}.d-j2{fill:#ffbf79}.d-j3{fill:#9bd48e}.d-j4{fill:#d9b3d6}.d-j5{fill:#f0d264}.d-j6{fill:#7fc4bc}` +
	`.d-j7{fill:#ffa8a0}.d-j8{fill:#cdb59f}.d-bad{stroke:#a8320f;stroke-width:2;stroke-dasharray:4 2}` +
	`.d-mark{font-weight:bold}` +
	`.d-at{fill:transparent}.d-at:hover{fill:#8883}` +
	`@media(max-width:699px){.d-w1{display:none}}@media(max-width:1099px){.d-w2{display:none}}` +
	`@media(max-width:1264px){.d-w3{display:none}}` +
	`@media(min-width:700px){.d-few{display:none}}` +
	`@media screen and (prefers-color-scheme:dark){.d-text{fill:#ddd}.d-axis{stroke:#666}` +
	`.d-a{fill:#6c9fe0}.d-b{fill:#34465f}.d-c{fill:#e39a4f}.d-line{stroke:#6c9fe0}` +
	`.d-grid{stroke:#2a313a}.d-size{stroke:#aaa}.d-book{fill:#2b2f33}.d-sum{stroke:#96968c}.d-all{stroke:#eee}` +
	`.d-j1{fill:#2f618c}.d-j2{fill:#94590f}.d-j3{fill:#39752d}.d-j4{fill:#7a4a78}.d-j5{fill:#7d6a10}.d-j6{fill:#236a63}` +
	`.d-j7{fill:#96433d}.d-j8{fill:#6b5340}.d-bad{stroke:#ff8a5c}}`

// New is an empty drawing.
func New(width, height int) *Drawing { return &Drawing{width: width, height: height} }

func (d *Drawing) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(d, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, class, x, y, max(w, 0), h)
}

func (d *Drawing) text(x, y float64, anchor, s string) {
	const element = `<text class="d-text" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`
	fmt.Fprintf(d, element, x, y, anchor, html.EscapeString(s))
}

// Inline is the Drawing as a part of a page.
func (d *Drawing) Inline(title string) string {
	if d.width <= ofPage {
		const element = `<svg class="time" style="height:%dpx" role="img" xmlns="http://www.w3.org/2000/svg">` +
			`<title>%s</title>%s</svg>`
		return fmt.Sprintf(element, d.height, html.EscapeString(title), d.String())
	}
	const element = `<svg viewBox="0 0 %d %d" role="img" xmlns="http://www.w3.org/2000/svg"><title>%s</title>%s</svg>`
	return fmt.Sprintf(element, d.width, d.height, html.EscapeString(title), d.String())
}

// File writes the Drawing as a file.
func (d *Drawing) File(w io.Writer, title string) error {
	_, err := fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?>`+"\n"+
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d">`+
		`<title>%s</title><style>%s</style>%s</svg>`+"\n",
		d.width, d.height, d.width, d.height, html.EscapeString(title), colours, d.String())
	return err
}

// Bar is one line of a bar chart: a part of a whole, and a mark.
type Bar struct {
	Label, Figure string
	Value, Back   float64 // Back: a paler bar behind, 0: none
	Alarm         bool
}

// Width is that of a drawing, and BarStep the height of each of its bars.
const (
	Width   = 480 // on a phone the texts can still be read
	BarStep = 24
)

const (
	barHeight  = 16
	labelWidth = 130
)

// Bars draws horizontal bars on a common scale from 0.
func (d *Drawing) Bars(top float64, list []Bar) {
	most := 1e-9
	for _, b := range list {
		most = max(most, b.Value, b.Back)
	}
	room := float64(Width - labelWidth - 80)
	for i, b := range list {
		y := top + float64(i*BarStep)
		d.text(labelWidth-8, y+12, "end", cut(strings.TrimPrefix(b.Label, "NVIDIA ")))
		if b.Back > 0 {
			d.rect("d-b", labelWidth, y, room*b.Back/most, barHeight)
		}
		class := "d-a"
		if b.Alarm {
			class = "d-c"
		}
		d.rect(class, labelWidth, y+3, room*b.Value/most, barHeight-6)
		d.text(labelWidth+room*max(b.Value, b.Back)/most+6, y+12, "start", b.Figure)
	}
}

// cut shortens a label to what there is room for.
func cut(label string) string {
	const most = 18
	if runes := []rune(label); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return label
}
