// SPDX-License-Identifier: Apache-2.0

// Package interference says how jobs on the same GPU at the same time slow each other
// down. It is pure. The choice of GPUs keeps bounds with it, and carma-sim plays with it:
// so the simulator shows the promises of a node.
package interference

// Client is a job with a process on a GPU.
type Client struct {
	Demand float64 // SM activity when alone, 0 to 1
	DRAM   float64 // memory bandwidth when alone, 0 to 1; 0: not known
	Server int32   // MPS server of the client; 0: none
	Rate   float64 // out: progress per second, 1 when alone
}

// Law says how clients of one MPS server share a GPU: it sets their rates and
// returns their combined SM activity.
type Law func(c []Client) (util float64)

// Combined returns 1 - prod(1 - u) and sum(u) of the SM activities.
func Combined(c []Client) (util, sum float64) {
	idle := 1.0
	for i := range c {
		idle *= 1 - c[i].Demand
		sum += c[i].Demand
	}
	return 1 - idle, sum
}

// Equal conserves SM work and slows all clients alike: of independent jobs
// 1 - prod(1 - u) of the time some SM is active, which is right within 0.08 in the five
// mixes of the curves that the CARMA authors published (cmd/carma-sim/internal/model/model.toml).
// The bandwidth of memory goes the same way, where that is known of jobs; the scarcer of
// the two sets the rate.
func Equal(c []Client) (util float64) {
	util, sum := Combined(c)
	rate := 1.0
	if len(c) > 1 && sum > 0 {
		rate = util / sum
		if r := bandwidth(c); r < rate {
			rate, util = r, r*sum
		}
	}
	for i := range c {
		c[i].Rate = rate
	}
	return util
}

// bandwidth is the rate that the bandwidth of memory allows.
func bandwidth(c []Client) float64 {
	idle, sum := 1.0, 0.0
	for i := range c {
		idle *= 1 - c[i].DRAM
		sum += c[i].DRAM
	}
	if sum == 0 {
		return 1
	}
	return (1 - idle) / sum
}

// Share applies law to each group of clients with a common server. Groups take
// turns: each gets an equal part of the time. Clients of a server stand
// together. It returns the GPU's SM activity.
func Share(law Law, c []Client) (util float64) {
	groups := 0
	for i := 0; i < len(c); groups++ {
		n := group(c, i)
		util += law(c[i:n])
		i = n
	}
	return turns(c, util, groups)
}

// ShareEqual is Share by Equal, which needs no memory of the heap.
func ShareEqual(c []Client) (util float64) {
	groups := 0
	for i := 0; i < len(c); groups++ {
		n := group(c, i)
		util += Equal(c[i:n])
		i = n
	}
	return turns(c, util, groups)
}

// group returns where the clients end that have a server in common with the i-th.
func group(c []Client, i int) int {
	n := i + 1
	for n < len(c) && c[i].Server != 0 && c[n].Server == c[i].Server {
		n++
	}
	return n
}

func turns(c []Client, util float64, groups int) float64 {
	if groups <= 1 {
		return util
	}
	for i := range c {
		c[i].Rate /= float64(groups)
	}
	return util / float64(groups)
}
