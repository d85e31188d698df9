package sim

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
)

// publisher sends one rank's batches on a PUB socket, as topic | sequence number | payload, and keeps the last ones for
// the replay ROUTER socket. Sequence numbers start at 0 with every publisher: that is all a consumer sees of a restart.
type publisher struct {
	form   form
	alone  bool // one event a message
	clear  bool // begins by saying that nothing is held (SGLang)
	topics bool // replies to DEALERs carry the topic
	rank   int
	topic  string
	steps  int          // batches kept
	skew   atomic.Int64 // nanoseconds
	late   time.Duration
	pub    *listener
	back   *listener // nil: no replay

	mu       sync.Mutex
	onTheWay [][]byte // of batches that are late
	next     uint64
	recent   []batch // the last batches, oldest first
	queues   map[*peer]chan []byte
}

type batch struct {
	seq     uint64
	payload []byte
}

// highWater is how many batches wait for a slow subscriber before it loses some (ZMQ's SNDHWM). vLLM sets 100000.
const highWater = 8192

func (p *publisher) start() {
	p.queues = map[*peer]chan []byte{}
	p.pub.run(p.subscriber)
	if p.back != nil {
		p.back.run(p.replay)
	}
	if p.clear {
		p.publish([]event{{kind: cleared}})
	}
}

func (p *publisher) stop() {
	p.pub.stop()
	if p.back != nil {
		p.back.stop()
	}
}

// publish sends one batch and never blocks.
func (p *publisher) publish(events []event) {
	for p.alone && len(events) > 1 {
		p.publish(events[:1])
		events = events[1:]
	}
	payload := batchOf(p.form, events, p.rank, time.Now().Add(time.Duration(p.skew.Load())))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.late > 0 {
		p.onTheWay = append(p.onTheWay, payload)
		time.AfterFunc(p.late, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.number(p.onTheWay[0])
			p.onTheWay = p.onTheWay[1:]
		})
		return
	}
	p.number(payload)
}

// number gives a batch its number and sends it. p.mu is held.
func (p *publisher) number(payload []byte) {
	seq := p.next
	p.next++
	p.recent = append(p.recent, batch{seq, payload})
	if len(p.recent) > p.steps {
		p.recent = p.recent[1:]
	}
	p.send(zmtpMessage([]byte(p.topic), binary.BigEndian.AppendUint64(nil, seq), payload))
}

// send gives a message to all subscribers. p.mu is held.
func (p *publisher) send(msg []byte) {
	for s, queue := range p.queues {
		if s.wants(p.topic) {
			select {
			case queue <- msg:
			default: // past the mark: dropped, as PUB does
			}
		}
	}
}

// told counts the batches so far, and reports whether a subscriber would get the next one.
func (p *publisher) told() (batches uint64, subscribed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.queues {
		subscribed = subscribed || s.wants(p.topic)
	}
	return p.next, subscribed
}

// subscriber serves one SUB peer.
func (p *publisher) subscriber(s *peer) {
	queue, gone := make(chan []byte, highWater), make(chan struct{})
	p.mu.Lock()
	p.queues[s] = queue
	p.mu.Unlock()
	var writer sync.WaitGroup
	writer.Go(func() {
		for {
			select {
			case <-gone:
				return
			case msg := <-queue:
				if _, err := s.conn.Write(msg); err != nil {
					return
				}
			}
		}
	})
	for {
		if _, err := s.receive(); err != nil {
			break
		}
	}
	p.mu.Lock()
	delete(p.queues, s)
	p.mu.Unlock()
	close(gone)
	_ = s.conn.Close()
	writer.Wait()
}

// replay serves one DEALER or REQ peer: a request is an empty frame and a first sequence number.
func (p *publisher) replay(s *peer) {
	endMark := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for {
		req, err := s.receive()
		if err != nil {
			return
		}
		if len(req) != 2 || len(req[0]) != 0 || len(req[1]) != 8 {
			continue // vLLM ignores other shapes too
		}
		from := binary.BigEndian.Uint64(req[1])
		p.mu.Lock()
		var batches []batch
		if n := len(p.recent); n > 0 && from <= p.recent[n-1].seq {
			batches = p.recent[max(from, p.recent[0].seq)-p.recent[0].seq:]
		}
		p.mu.Unlock()
		for _, b := range batches {
			if err := p.answer(s, []byte(p.topic), binary.BigEndian.AppendUint64(nil, b.seq), b.payload); err != nil {
				return
			}
		}
		if err := p.answer(s, nil, endMark, nil); err != nil {
			return
		}
	}
}

// answer sends one replay message: with the topic since 0.26.
func (p *publisher) answer(s *peer, topic, seq, payload []byte) error {
	frames := [][]byte{nil, topic, seq, payload}
	if !p.topics {
		frames = [][]byte{nil, seq, payload}
	}
	_, err := s.conn.Write(zmtpMessage(frames...))
	return err
}

// listenRanks binds an event and a replay port for every rank: rank r has the first one's port plus r. Without replay
// there are only events.
func listenRanks(events, replay string, ranks int) (pubs, backs []*listener, err error) {
	for range 32 { // with port 0, the ports behind the first may be taken
		pubs, err = listenRun(events, ranks, zmq4.Pub)
		if err == nil {
			if replay == "" {
				return pubs, make([]*listener, ranks), nil
			}
			backs, err = listenRun(replay, ranks, zmq4.Router)
			if err == nil {
				return pubs, backs, nil
			}
			closeAll(pubs)
		}
	}
	return nil, nil, err
}
