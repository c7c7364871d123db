// SPDX-License-Identifier: Apache-2.0

package training

// Optimizer as in the optim= key.
type Optimizer uint8

// The optimizers.
const (
	Adam Optimizer = iota
	AdamW
	AdamWHF // transformers.AdamW: one parameter after the other
	SGD
	SGDMomentum
	Adagrad
	Adadelta
	RMSprop
	Adafactor
	Adam8bit
)

// Optimizers are their words.
var Optimizers = [...]string{"adam", "adamw", "adamw_hf", "sgd", "sgdm", "adagrad", "adadelta", "rmsprop",
	"adafactor", "adam8bit"}

func (o Optimizer) String() string { return Optimizers[int(o)%len(Optimizers)] }

// footprint of an optimizer per parameter, from torch/optim/*.py.
type footprint struct {
	states  int   // state tensors of the parameter's size
	each    int   // temporaries of one parameter's size, one parameter after the other
	foreach int   // temporaries for all parameters at once in the foreach form
	stateB  int64 // bytes per element of a state, 0: the parameter's
}

var footprints = [...]footprint{
	Adam:        {states: 2, each: 2, foreach: 1}, // exp_avg, exp_avg_sq; sqrt(exp_avg_sq)
	AdamW:       {states: 2, each: 2, foreach: 1},
	AdamWHF:     {states: 2, each: 2, foreach: 0},
	SGD:         {states: 0, each: 0, foreach: 0},
	SGDMomentum: {states: 1, each: 0, foreach: 1}, // momentum_buffer
	Adagrad:     {states: 1, each: 1, foreach: 2}, // sum; std, and grad*lr
	Adadelta:    {states: 2, each: 2, foreach: 2}, // square_avg, acc_delta; std, deltas
	RMSprop:     {states: 1, each: 1, foreach: 1}, // square_avg; avg
	Adafactor:   {states: 0, each: 2, foreach: 0}, // rows and columns only
	Adam8bit:    {states: 2, each: 0, foreach: 0, stateB: 1},
}

// step makes the optimizer's state on the first call and its temporaries on
// every call.
func (s *sim) step(it int) {
	f := footprints[int(s.p.Optimizer)%len(footprints)]
	if it == 0 {
		s.makeState(f)
	}
	n := f.each
	if s.p.Foreach && s.p.Optimizer != AdamWHF {
		n = f.foreach
	}
	if !s.p.Foreach || s.p.Optimizer == AdamWHF || f.foreach == 0 {
		s.oneByOne(n)
		return
	}
	all := make([]slot, 0, n*len(s.g.Params))
	for k := 0; k < n; k++ {
		c := chunk{s: s}
		for i := range s.g.Params {
			if b := s.shard(i); b > 0 {
				all = append(all, c.alloc(b))
			}
		}
		all = append(all, c.flush())
	}
	for i := range all {
		s.free(&all[i])
	}
}

// chunk gathers small blocks that live and die together into blocks of up to
// 1 MiB, the largest of the small pool, which packs them the same.
type chunk struct {
	s *sim
	n int64
}

const (
	chunkMax  = 1 << 20
	chunkItem = 256 << 10
)

func (c *chunk) alloc(b int64) slot {
	if b > chunkItem {
		return c.s.alloc(b, OptimizerState)
	}
	b = (b + 511) / 512 * 512
	if c.n+b <= chunkMax {
		c.n += b
		return slot{}
	}
	full := c.n
	c.n = b
	return c.s.alloc(full, OptimizerState)
}

func (c *chunk) flush() slot {
	n := c.n
	c.n = 0
	return c.s.alloc(n, OptimizerState)
}

// oneByOne makes n temporaries for one parameter after the other. One that is
// no larger than an earlier one in the same pool fits where that was, so only
// growing sizes change anything.
func (s *sim) oneByOne(n int) {
	var most [2]int64
	for i := range s.g.Params {
		b := s.shard(i)
		pool := 0
		if b > 1<<20 {
			pool = 1
		}
		if b <= most[pool] {
			continue
		}
		most[pool] = b
		var t [2]slot
		for k := 0; k < min(n, len(t)); k++ {
			t[k] = s.alloc(b, OptimizerState)
		}
		s.free(&t[0])
		s.free(&t[1])
	}
}

// shard is the bytes of one state of parameter i on this GPU.
func (s *sim) shard(i int) int64 {
	if s.g.Params[i].Frozen {
		return 0
	}
	return onEach(s.g.Params[i].Elems*s.p.ParamBytes, s.p.StateShards)
}

func (s *sim) makeState(f footprint) {
	c := chunk{s: s}
	for i := range s.g.Params {
		b := s.shard(i)
		if b <= 0 {
			continue
		}
		if f.stateB > 0 {
			// bitsandbytes keeps tensors below 4096 elements in full, and a
			// scale per 256 elements.
			if e := s.g.Params[i].Elems; e >= 4096 {
				b = e*f.stateB/s.p.StateShards + e/64
			}
		}
		for k := 0; k < f.states; k++ {
			c.alloc(b)
		}
	}
	c.flush()
}
