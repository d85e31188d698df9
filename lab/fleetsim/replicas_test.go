package fleetsim

import "testing"

// TestReplicasThatShare: replicas that share are as good as a single router, except for the randomness of one traffic, and better
// than those that do not.
func TestReplicasThatShare(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds of simulation")
	}
	sc := scenario(t, "images")
	trace := sc.at(0.7, 1)
	play := func(replicas int, how Sharing) Summary {
		setup := sc.setup()
		setup.Replicas, setup.Sharing = replicas, how
		return Run(setup, trace, newSightline).Summarise(warmUp, sc.Until)
	}
	one, shared, apart := play(1, Sharing{}), play(4, Sharing{Every: shareEvery}), play(4, Sharing{})
	mean, tail := over(shared.Mean, one.Mean), over(shared.TTFT.P99, one.TTFT.P99)
	if mean > 1.06 || tail > 1.12 {
		t.Errorf("four replicas that share: mean TTFT %.3f of one's, p99 %.3f", mean, tail)
	}
	if apart.Mean < shared.Mean+shared.Mean/10 {
		t.Errorf("mean TTFT %v where nothing is shared, %v where all is, want at least %v", apart.Mean, shared.Mean, shared.Mean+shared.Mean/10)
	}
}
