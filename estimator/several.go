// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"slices"
	"strings"

	"carma/estimator/summary"
)

// several estimates each model of a text, as generator and discriminator, and adds
// them up: how their steps overlap no summary shows.
func several(s Spec, models []*summary.Model, fitted refit) (Estimate, error) {
	var e Estimate
	w := newWork(models...)
	for i, m := range models {
		own := s
		own.Params = 0 // a count of all
		if m.Format == summary.Repr && i > 0 && !takes(m, s.Input) {
			own.Input = [3]int{} // of the first one
		}
		one, err := ofModel(own, m, fitted, w)
		if err != nil {
			return Estimate{}, err
		}
		if i == 0 {
			e = one
			e.Reasons, e.Remedy = nil, NoRemedy
			e.lower(Unsure, "the text shows %d models, which are added up: print only the one that is trained, or "+
				"trace the step", len(models))
			e.want(Trace)
			e.addReasons(one.Reasons, one.Remedy)
			continue
		}
		e.plus(&one)
	}
	e.margin()
	return e, nil
}

// plus adds the estimate of another model in the same process.
func (e *Estimate) plus(o *Estimate) {
	base := o.Parts[0].MiB // of a process, which is the same
	more := max(base-e.Parts[0].MiB, 0)
	e.FloorMiB += o.FloorMiB - base + more
	e.MiB += o.MiB - base + more
	e.WishMiB = max(e.WishMiB, o.WishMiB) // one convolution at a time
	e.Parts[0].MiB += more
	for i := 1; i < len(e.Parts); i++ {
		e.Parts[i].MiB += o.Parts[i].MiB
	}
	e.Confidence = max(e.Confidence, o.Confidence)
	e.Params, e.Rows, e.CuDNN = e.Params+o.Params, e.Rows+o.Rows, e.CuDNN || o.CuDNN
	e.addReasons(o.Reasons, o.Remedy)
	for _, a := range o.Assumed {
		if !slices.Contains(e.Assumed, a) {
			e.Assumed = append(e.Assumed, a)
		}
	}
	for _, u := range o.Unknown {
		i := slices.IndexFunc(e.Unknown, func(have Unknown) bool { return have.Kind == u.Kind })
		if i < 0 {
			e.Unknown = append(e.Unknown, u)
			continue
		}
		e.Unknown[i].Count += u.Count
	}
}

func (e *Estimate) addReasons(reasons []string, r Remedy) {
	for _, text := range reasons {
		if !slices.Contains(e.Reasons, text) {
			e.Reasons = append(e.Reasons, text)
		}
	}
	if r != NoRemedy {
		e.want(r)
	}
}

// takes says whether the first layer of a module representation reads such a sample.
func takes(m *summary.Model, input [3]int) bool {
	for i := range m.Rows {
		r := &m.Rows[i]
		switch {
		case r.Attr.In == 0:
		case strings.HasPrefix(r.Kind, "Conv"):
			return int(r.Attr.In) == input[0]
		case r.Kind == "Linear":
			all := max(input[0], 1) * max(input[1], 1) * max(input[2], 1)
			return int(r.Attr.In) == all || slices.Contains(input[:], int(r.Attr.In))
		}
	}
	return true
}
