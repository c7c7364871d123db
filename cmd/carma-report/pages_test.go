// SPDX-License-Identifier: Apache-2.0

//go:build pages

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"image"
	"image/draw"
	"image/png"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
)

// Pages of all commands in Chromium, by their parts: at the width of a phone and of a desk, light, dark and on
// paper. CARMA_PAGES keeps the pictures.
func TestPages(t *testing.T) {
	dir := os.Getenv("CARMA_PAGES")
	if dir == "" {
		dir = t.TempDir()
	}
	paths, err := filepath.Glob("../*/testdata/*.html")
	if err != nil || len(paths) < 6 {
		t.Fatalf("pages: %q, %v", paths, err)
	}
	for _, path := range append(paths, monday(t, dir)...) {
		name := strings.TrimSuffix(filepath.Base(path), ".html")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			for i, l := range look(t, []string{string(text), string(text), string(text), string(text)}, views) {
				v := views[i]
				for _, fault := range append(l.faults(v), l.coloursIn(v)...) {
					t.Errorf("%d pixels, %s: %s", v.width, v.scheme, fault)
				}
				l.save(t, filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", name, v.width, v.scheme)))
			}
			paper := filepath.Join(dir, name+".pdf")
			chromium(t, "--no-pdf-header-footer", "--print-to-pdf="+paper, "file://"+absolute(t, path))
			if got := pagesOf(t, paper); got != onPaper[name] {
				t.Errorf("%d pages on paper, want %d", got, onPaper[name])
			}
		})
	}
}

// view is how a page is looked at.
type view struct {
	width  int
	scheme string
}

var views = []view{{400, "dark"}, {400, "light"}, {1600, "dark"}, {1600, "light"}}

// onPaper is how many A4 or letter pages each page takes.
var onPaper = map[string]int{"forecast": 3, "gpus": 3, "monday": 6, "monday-job": 3, "one": 2, "several": 3,
	"summary": 2, "table": 1}

// Each kind of fault is found.
func TestFaultsOfPages(t *testing.T) {
	text, err := os.ReadFile("testdata/gpus.html")
	if err != nil {
		t.Fatal(err)
	}
	faults := []struct{ name, old, new, want string }{
		{"none", "", "", ""},
		{"wide", "<h1>", `<div style="width:500px">x</div><h1>`, "wider than the window"},
		{"labels", "<h1>", `<svg><text x="0" y="20">one</text><text x="5" y="22">two</text></svg><h1>`,
			`"one" and "two" overlap`},
		{"outside", "<h1>", `<svg overflow="visible"><text x="-99" y="20">one</text></svg><h1>`, `"one" is outside`},
		{"empty", `<table`, `<table style="display:none"`, "table has no size"},
		{"request", "<h1>", `<img alt="" src="http://127.0.0.1:9/x.png"><h1>`, "asks for http://127.0.0.1:9/x.png"},
		{"always dark", "light dark;", "light dark;--back:#111 !important;", "the background's brightness is 0.0"},
		{"colour", ".d-j1{fill:#9ecae9}", ".d-j1{fill:#9ecae9;opacity:.5}", "is not rgb(158, 202, 233)"},
	}
	var texts []string
	var in []view
	for _, f := range faults {
		texts, in = append(texts, strings.Replace(string(text), f.old, f.new, 1)), append(in, view{400, "light"})
	}
	for i, l := range look(t, texts, in) {
		got := strings.Join(append(l.faults(in[i]), l.coloursIn(in[i])...), "; ")
		if want := faults[i].want; want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", faults[i].name, got, want)
		}
	}
}

// part is a box on a page, in pixels.
type part struct {
	Kind, Text, Colour string
	X, Y, W, H         float64
}

// layout is the place of each part of a page, and the picture of the page.
type layout struct {
	Inner, Client, Scroll, Height int // pixels of the window, and of the page
	Requests                      []string
	Parts                         []part
	picture                       *image.RGBA
}

const script = `<script>
const parts = [], add = (kind, e, text, colour) => {
	const b = e.getBoundingClientRect();
	parts.push({kind, text, colour, x: b.x + scrollX, y: b.y + scrollY, w: b.width, h: b.height});
};
const all = (kind, selector, colour) => {
	for (const e of document.querySelectorAll(selector)) {
		const style = getComputedStyle(e);
		if (e.closest("[aria-hidden]") || e.tagName == "text" && style.display == "none") continue;
		add(kind, e, e.textContent.trim(), colour ? style[colour] : "");
	}
};
all("label", "svg text");
all("lane", "rect[class^=d-j]", "fill");
all("curve", "path.d-line, path.d-all");
all("area", "path.d-book, path[class^=d-j]");
all("drawing", "body > svg, .parts > svg");
all("key", ".keys span");
all("table", "table");
all("wide", ".wide");
all("text", "h1, h2, p, ul");
const root = document.documentElement, facts = document.createElement("pre");
facts.id = "facts-" + name;
facts.hidden = true;
facts.textContent = JSON.stringify({inner: innerWidth, client: root.clientWidth, scroll: root.scrollWidth,
	height: Math.ceil(document.body.getBoundingClientRect().bottom), requests: performance.getEntriesByType("resource").map(r => r.name), parts});
addEventListener("load", () => parent.document.body.append(facts));
</script>`

// look has Chromium show pages beside each other, each in a frame: no window is narrower than 500 pixels.
func look(t *testing.T, texts []string, in []view) (list []layout) {
	t.Helper()
	const high = 6000 // all of a page is in the picture
	dir, wide, frames := t.TempDir(), 0, ""
	for i, v := range in {
		file := fmt.Sprintf("%d.html", i)
		text := strings.Replace(texts[i], "</body>", script+"</body>", 1)
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		const frame = `<iframe name="%d" src="%s" style="position:absolute;left:%dpx;top:0;border:0;width:%dpx;height:%dpx;` +
			`background:Canvas;color-scheme:%s"></iframe>`
		frames += fmt.Sprintf(frame, i, file, wide, v.width, high, v.scheme)
		wide += v.width
	}
	top, all := filepath.Join(dir, "all.html"), filepath.Join(dir, "all.png")
	if err := os.WriteFile(top, []byte("<!DOCTYPE html><body>"+frames+"</body>"), 0o644); err != nil {
		t.Fatal(err)
	}
	dom := chromium(t, fmt.Sprintf("--window-size=%d,%d", wide, high), "--screenshot="+all, "--dump-dom", "file://"+top)
	whole, left := picture(t, all), 0
	for i, v := range in {
		var l layout
		facts := regexp.MustCompile(fmt.Sprintf(`(?s)<pre id="facts-%d"[^>]*>(.*?)</pre>`, i)).FindSubmatch(dom)
		if facts == nil {
			t.Fatalf("no facts of page %d:\n%.2000s", i, dom)
		}
		if err := json.Unmarshal([]byte(html.UnescapeString(string(facts[1]))), &l); err != nil {
			t.Fatal(err)
		}
		if l.Height > high {
			t.Fatalf("the page is %d pixels high", l.Height)
		}
		l.picture = image.NewRGBA(image.Rect(0, 0, v.width, l.Height))
		draw.Draw(l.picture, l.picture.Bounds(), whole, image.Pt(left, 0), draw.Src)
		list, left = append(list, l), left+v.width
	}
	return list
}

// chromium runs without a sandbox, for containers give no namespaces: the pages are ours.
func chromium(t *testing.T, args ...string) []byte {
	t.Helper()
	args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--user-data-dir=" + t.TempDir(), "--allow-file-access-from-files", "--force-device-scale-factor=1"}, args...)
	// A browser that hangs is said with its words; go test would end in silence.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "chromium", args...)
	c.WaitDelay = 10 * time.Second // its children hold the pipes
	var says bytes.Buffer
	c.Stderr = &says
	out, err := c.Output()
	if err != nil {
		t.Fatalf("chromium %q: %v\n%s", args, err, says.Bytes())
	}
	return out
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// faults are the parts of a page that a reader would call broken.
func (l layout) faults(v view) (list []string) {
	fault := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if l.Inner != v.width {
		fault("the window has %d pixels", l.Inner)
	}
	if l.Scroll > l.Client {
		fault("the page is %d pixels wide, wider than the window of %d", l.Scroll, l.Client)
	}
	for _, r := range l.Requests {
		fault("the page asks for %s", r)
	}
	var labels []part
	for _, p := range l.Parts {
		const most = 0.5                               // of rounding
		if p.W <= 0 || p.H <= 0 && p.Kind != "curve" { // a curve may be flat
			fault("a %s has no size: %.40q %.1f x %.1f", p.Kind, p.Text, p.W, p.H)
		}
		// A wide table is moved within a box.
		if p.Kind != "table" && (p.X < -most || p.Y < -most || p.X+p.W > float64(l.Client)+most ||
			p.Y+p.H > float64(l.Height)+most) {
			fault("%s %.40q is outside of the page: from %.0f,%.0f to %.0f,%.0f", p.Kind, p.Text, p.X, p.Y, p.X+p.W, p.Y+p.H)
		}
		if p.Kind != "label" {
			continue
		}
		for _, q := range labels {
			const touch = 2 // the box of a text is higher than its letters
			if p.X+touch < q.X+q.W && q.X+touch < p.X+p.W && p.Y+touch < q.Y+q.H && q.Y+touch < p.Y+p.H {
				fault("labels %q and %q overlap at %.0f,%.0f", q.Text, p.Text, p.X, p.Y)
			}
		}
		labels = append(labels, p)
	}
	return list
}

// coloursIn holds the picture to the scheme, and to the colours of bars.
func (l layout) coloursIn(v view) (list []string) {
	c := l.picture.RGBAAt(2, 2)
	if brightness := (float64(c.R) + float64(c.G) + float64(c.B)) / 3 / 255; v.scheme == "dark" && brightness > 0.25 ||
		v.scheme == "light" && brightness < 0.75 {
		list = append(list, fmt.Sprintf("the background's brightness is %.2f", brightness))
	}
	for _, p := range l.Parts {
		if p.Kind == "lane" && p.W >= 4 && !l.has(p) { // narrower: no pixel is all of the bar's colour
			list = append(list, fmt.Sprintf("the bar at %.0f,%.0f is not %s", p.X, p.Y, p.Colour))
		}
	}
	return list
}

// has tells whether a part's colour is in the picture, in the part's box.
func (l layout) has(p part) bool {
	var r, g, b uint8
	if n, err := fmt.Sscanf(p.Colour, "rgb(%d, %d, %d)", &r, &g, &b); n != 3 || err != nil {
		return false
	}
	box := image.Rect(int(p.X), int(p.Y), int(p.X+p.W), int(p.Y+p.H)).Intersect(l.picture.Bounds())
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			if c := l.picture.RGBAAt(x, y); c.R == r && c.G == g && c.B == b {
				return true
			}
		}
	}
	return false
}

func (l layout) save(t *testing.T, path string) {
	t.Helper()
	var text bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&text, l.picture); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func picture(t *testing.T, path string) image.Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	i, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

var pdfPage = regexp.MustCompile(`/Type\s*/Page\b`)

// pagesOf counts the pages of a PDF.
func pagesOf(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return len(pdfPage.FindAll(text, -1))
}

// monday writes the page of the GPUs after a busy weekend, and the page of a job on four GPUs.
func monday(t *testing.T, dir string) (paths []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "carma.db")
	if err := weekend(path); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CARMA_CONF", "")
	time.Local = time.UTC
	for name, args := range map[string][]string{"monday": {"gpus", "-S", "2026-03-06", "-E", "2026-03-09T08:00"},
		"monday-job": {"-j", "1"}} {
		var out bytes.Buffer
		if err := run(context.Background(), append(args, "--html", "--db", path), &out); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, name+".html")
		if err := os.WriteFile(to, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, to)
	}
	return paths
}

// weekend makes records of eight GPUs on two nodes, from Friday evening to Monday morning: three or four jobs on a
// GPU, some short, one that is idle, some that run out of memory, and an hour without an agent.
func weekend(path string) error {
	d, err := db.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	const total, gpus, step = 81920, 8, 5 * time.Minute
	random := rand.New(rand.NewPCG(1, 2))
	begin, end := time.Date(2026, 3, 6, 17, 0, 0, 0, time.UTC), time.Date(2026, 3, 9, 7, 55, 0, 0, time.UTC)
	uuid := func(gpu int) string { return fmt.Sprintf("GPU-%08x-1111-2222-3333-444455556666", gpu) }
	users := []string{"alice", "bob", "carol", "dmitri", "eun-ji"}
	type run struct {
		db.Attempt
		smact float64
		ramp  float64 // seconds until all memory is in use
	}
	on := make([][]run, gpus)
	id := uint32(0)
	add := func(gpusOf []int, from, to time.Time, user string, booked, peak int64, smact float64) {
		id++
		a := db.Attempt{JobID: id, Cluster: "c", Node: fmt.Sprintf("gpu%02d", 1+gpusOf[0]/4), User: user,
			UID: uint32(len(user)), Account: "lab", Partition: "gpu", Name: fmt.Sprint("train-", id), State: "COMPLETED",
			Mode: "shared", Method: "user",
			Submit: from.Add(-time.Minute), Start: from, End: to, EstMiB: booked, ReserveMiB: booked}
		if random.IntN(9) == 0 && len(gpusOf) == 1 {
			a.State, a.OOM, a.ExitCode = "OUT_OF_MEMORY", "pytorch", 1
		}
		length := to.Sub(from).Seconds()
		for _, g := range gpusOf {
			f := figure.Figures{PeakMiB: peak, PeakFrom: figure.MemoryProcess, MeanMiB: peak, SMActPct: figure.Measured(smact),
				SMActMax: figure.Measured(smact), SMActFrom: figure.SourceGPM, EnergyJ: figure.Measured(200 * length),
				IdleJ: figure.Measured(50 * length), LeaseS: length, SharedS: length / 2, HeldS: length * 3 / 4,
				AloneS: figure.Measured(length * 0.9)}
			a.GPUs = append(a.GPUs, db.AttemptGPU{UUID: uuid(g), Model: "NVIDIA H100 80GB HBM3", Figures: f})
		}
		r := run{a, smact, 60 + 3000*random.Float64()}
		for _, g := range gpusOf {
			on[g] = append(on[g], r)
		}
	}
	add([]int{0, 1, 2, 3}, begin.Add(time.Hour), begin.Add(31*time.Hour), "alice", 40960, 36000, 55)
	add([]int{4}, begin.Add(30*time.Minute), end, "dmitri", 30720, 9000, 1)
	for g := range gpus {
		for range 2 {
			for from := begin.Add(time.Duration(random.IntN(120)) * time.Minute); from.Before(end); {
				booked := int64(4+random.IntN(16)) * 1024
				to := from.Add(time.Duration(10+random.ExpFloat64()*400) * time.Minute)
				if to.After(end) {
					break
				}
				add([]int{g}, from, to, users[random.IntN(len(users))], booked, booked*int64(60+random.IntN(40))/100,
					5+40*random.Float64())
				from = to.Add(time.Duration(random.ExpFloat64()*60) * time.Minute)
			}
		}
	}
	var samples []db.Sample
	var meters []db.Meter
	put := map[uint32]bool{}
	for g, runs := range on {
		for _, r := range runs {
			if !put[r.JobID] {
				put[r.JobID] = true
				if err := d.Put(context.Background(), r.Attempt); err != nil {
					return err
				}
			}
		}
		meters = append(meters, db.Meter{UUID: uuid(g), Index: g % 4, Model: "NVIDIA H100 80GB HBM3", TotalMiB: total,
			Node: fmt.Sprintf("gpu%02d", 1+g/4), At: end, CounterJ: 1, FloorWatts: 70})
		for at := begin; at.Before(end); at = at.Add(step) {
			if h := at.Sub(begin).Hours(); g < 4 && h >= 40 && h < 41 {
				continue
			}
			s := db.Sample{UUID: uuid(g), At: at, Length: step, UsedMiB: 600, SMActS: step.Seconds(), EnergyS: step.Seconds()}
			for _, r := range runs {
				if !at.Before(r.End) || !at.Add(step).After(r.Start) {
					continue
				}
				mib := int64(float64(r.GPUs[0].PeakMiB) * min(1, 0.2+max(at.Sub(r.Start).Seconds(), 0)/r.ramp))
				s.Memory = append(s.Memory, db.JobSample{UUID: s.UUID, At: at, Length: step, JobID: r.JobID, UID: r.UID,
					UsedMiB: mib})
				s.UsedMiB += mib
				s.SMActPct += figure.Measured(r.smact * (0.8 + 0.4*random.Float64()))
				s.Jobs++
			}
			s.SMActPct = min(s.SMActPct, 100)
			s.SMActMax, s.EnergyJ = s.SMActPct, figure.Measured(step.Seconds())*(70+5*s.SMActPct)
			samples = append(samples, s)
		}
	}
	return d.AddSamples(context.Background(), samples, meters)
}
