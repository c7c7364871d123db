// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"encoding/json"
	"io"

	"carma/cmd/carma-estimate/internal/script"
	"carma/slurmbridge/version"
)

// schema names the meaning of the JSON (docs/json.md).
const schema = "carma.estimate/1"

type jsonReport struct {
	Schema     string          `json:"schema"`
	Version    string          `json:"version"`
	Submission *jsonSubmission `json:"submission"`
	Estimate   *jsonEstimate   `json:"estimate"`
	Fit        []Fit           `json:"fit"`
	MaxJobs    int             `json:"max_jobs"`
}

type jsonEstimate struct {
	Method     string        `json:"method"`
	Path       string        `json:"path"`
	Confidence string        `json:"confidence"`
	FloorMiB   int64         `json:"floor_mib"`
	MiB        int64         `json:"mib"`
	ReserveMiB int64         `json:"reserve_mib"`
	WishMiB    int64         `json:"wish_mib"`
	Parts      []jsonPart    `json:"parts"`
	Reasons    []string      `json:"reasons"`
	Assumed    []string      `json:"assumed"`
	Unknown    []jsonUnknown `json:"unknown"`
	Params     int64         `json:"params"`
	Modules    int           `json:"modules"`
}

type jsonPart struct {
	Name string `json:"name"`
	MiB  int64  `json:"mib"`
}

type jsonUnknown struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`
}

type jsonSubmission struct {
	Script     string   `json:"script"`
	Written    []string `json:"written"`
	Config     *string  `json:"config"`
	Partition  string   `json:"partition"`
	Refused    *string  `json:"refused"`
	Managed    bool     `json:"managed"`
	Why        string   `json:"why"`
	Unread     string   `json:"unread"`
	Mode       *string  `json:"mode"`
	Method     *string  `json:"method"`
	Placement  *string  `json:"placement"`
	GPUs       int      `json:"gpus"`
	EstMiB     *int64   `json:"est_mib"`
	ReserveMiB *int64   `json:"reserve_mib"`
	FullMiB    *int64   `json:"full_mib"`
	PerNode    string   `json:"tres_per_node"`

	History *jsonHistory `json:"history"`

	Launches []jsonLaunch `json:"launches"`
}

type jsonLaunch struct {
	Name  string `json:"name"`
	Where string `json:"where"`
	Says  string `json:"says"`
}

type jsonHistory struct {
	Runs      int     `json:"runs"`
	PeakMiB   int64   `json:"peak_mib"`
	SpreadMiB int64   `json:"spread_mib"`
	MeanMiB   int64   `json:"mean_mib"`
	SMActPct  float64 `json:"smact_pct"`
	RunS      int64   `json:"run_s"`
}

// PrintJSON prints the report for programs.
func (r Report) PrintJSON(w io.Writer) error {
	out := jsonReport{Schema: schema, Version: version.String(), Fit: append([]Fit{}, r.Fit...), MaxJobs: r.MaxJobs}
	if e := r.Estimate; e != nil {
		j := jsonEstimate{
			Method: r.Method, Path: e.Path, Confidence: e.Confidence.String(), FloorMiB: e.FloorMiB, MiB: e.MiB,
			ReserveMiB: e.ReserveMiB, WishMiB: e.WishMiB,
			Parts: []jsonPart{}, Reasons: append([]string{}, e.Reasons...), Assumed: append([]string{}, e.Assumed...),
			Unknown: []jsonUnknown{}, Params: e.Params, Modules: e.Rows,
		}
		for _, p := range e.Parts {
			j.Parts = append(j.Parts, jsonPart(p))
		}
		for _, u := range e.Unknown {
			j.Unknown = append(j.Unknown, jsonUnknown(u))
		}
		out.Estimate = &j
	}
	if r.Submission != nil {
		out.Submission = submissionJSON(r.Submission)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

func submissionJSON(s *script.Submission) *jsonSubmission {
	j := jsonSubmission{
		Script: s.Script, Written: append([]string{}, s.Written...), Partition: s.Partition,
		Managed: s.GPUs > 0, Why: s.Why, Unread: s.Unread, GPUs: s.GPUs, PerNode: s.TRES.PerNode,
	}
	j.Launches = []jsonLaunch{}
	for _, f := range s.Launches {
		j.Launches = append(j.Launches, jsonLaunch(f))
	}
	if v := s.Seen; v != nil {
		j.History = &jsonHistory{v.Runs, v.PeakMiB, v.SpreadMiB, v.MeanMiB, v.SMActPct, v.RunS}
	}
	if s.Site.Path != "" {
		j.Config = &s.Site.Path
	}
	if s.Refused != nil {
		text := s.Refused.Error()
		j.Refused = &text
	}
	if s.GPUs > 0 {
		mode, method := string(s.Mode), string(s.Method)
		j.Mode, j.Method = &mode, &method
		j.ReserveMiB, j.FullMiB = &s.ReserveMiB, &s.FullMiB
		if s.Policy != "" {
			j.Placement = &s.Policy
		}
		if s.EstMiB > 0 {
			j.EstMiB = &s.EstMiB
		}
	}
	return &j
}
