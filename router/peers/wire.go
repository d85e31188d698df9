package peers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/sightline-router/sightline/internal/binread"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/workers/fleet"
)

// A message: 'P' version | the sender's instance, 8 bytes | entry …
//
//	given    1 | answers | fetched: from lower tiers, from another worker | model, tenant | number | worker, rank | decoder, rank
//	         | tokens | context | from | proven | flags | locals: n, u64 … | images: n, (key u64, alias u64, tokens) …
//	over     2 | number
//	broken   3 | number
//	report   4 | id | phase | addr | fault | source u64 | code | flags | first byte, ns | cached+1 | prompt+1 | output
//	state    5 | flags | n, (number | worker, rank | tokens | context | answers | decoder, rank) …
//	bye      6
//	askHeld  7 | question | worker, rank; a message of its own
//	piece    8 | question | offset | size of the answer | n, bytes: of the answer, also a message of its own
//	key      9 | ID of the sender's key, 8 bytes | flags | age in ms: behind a state
//	askKey  10; secret 11 | 32 bytes: a message of its own
//	lesson  12 | ID of the key, 8 bytes | class u32 | prompt+1 | tokens | steps: n, (number, 16 bytes | flags | bytes) … | locals: n, u64 …
//	path    13 | steps: n, u64 …: of the given behind it
//	orders  14 | n, (worker | what it may have | age in ms) …: behind a state
//
// Numbers are varints; a rank is sent plus one; a text is preceded by its length. A message is only about the sender's own data,
// so no entry names another sender.
const (
	magic           = 'P'
	version         = 2
	instanceBytes   = 8
	headBytes       = 2 + instanceBytes
	maxMessageBytes = 1 << 20 // of a message
	targetBytes     = maxMessageBytes / 4
	maxText         = 255
	maxNumber       = 1 << 40
	maxMedia        = 64
	maxStepBytes    = 1 << 30
	maxOrders       = 4096
	maxOpen         = 1 << 14 // bookings in a state; with more open ones it is only a heartbeat

	kindGiven   = 1
	kindOver    = 2
	kindBroken  = 3
	kindReport  = 4
	kindState   = 5
	kindBye     = 6
	kindAskHeld = 7
	kindPiece   = 8
	kindKey     = 9
	kindAskKey  = 10
	kindSecret  = 11
	kindLesson  = 12
	kindPath    = 13
	kindOrders  = 14

	flagTold     = 1
	flagFetches  = 2
	flagMoved    = 4
	flagAnswered = 1
	flagCut      = 2
	flagRetried  = 4
	flagWhole    = 1 // of a state: it has all open bookings
	flagAnswer   = 1 // of a step
	flagMedia    = 2
	flagUntold   = 4
	flagGuess    = 8 // of a lesson, with its first step
)

var errMalformed = errors.New("a message that cannot be read")

func messageHead(own string) []byte { return append([]byte{magic, version}, own...) }

func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), maxText)]
	return append(append(b, byte(len(s))), s...)
}

// appendNumber appends a number as far as others read it: one that they do not would cost all that is in the message.
func appendNumber(b []byte, n int) []byte {
	return binary.AppendUvarint(b, uint64(min(max(0, n), maxNumber)))
}

// appendShared appends what happened to a booking.
func appendShared(b []byte, s *router.SharedBooking) []byte {
	switch s.Kind {
	case router.BookingEnded:
		return binary.AppendUvarint(append(b, kindOver), s.Number)
	case router.BookingBroken:
		return binary.AppendUvarint(append(b, kindBroken), s.Number)
	}
	if len(s.Path) > 0 {
		b = appendLocals(append(b, kindPath), s.Path[:min(len(s.Path), learned.MaxSteps)])
	}
	b = appendNumber(appendNumber(appendNumber(append(b, kindGiven), s.Answers), s.Fetch), s.Pull)
	b = appendText(appendText(b, s.Model), s.Tenant)
	b = binary.AppendUvarint(b, s.Number)
	b = appendNumber(appendText(b, s.Worker), s.Rank+1)
	b = appendNumber(appendText(b, s.Decoder), s.DecoderRank+1)
	for _, n := range []int{s.Tokens, s.Context, s.From, s.Proven} {
		b = appendNumber(b, n)
	}
	flags := byte(0)
	if s.EventsExpected {
		flags = flagTold
	}
	if s.Fetches {
		flags |= flagFetches
	}
	if s.Moved {
		flags |= flagMoved
	}
	b = appendLocals(append(b, flags), s.Locals)
	media := s.Media[:min(len(s.Media), maxMedia)]
	b = appendNumber(b, len(media))
	for _, m := range media {
		b = binary.LittleEndian.AppendUint64(b, m.Key)
		b = binary.LittleEndian.AppendUint64(b, m.Alias)
		b = appendNumber(b, m.Tokens)
	}
	return b
}

func appendLocals(b []byte, locals []uint64) []byte {
	b = appendNumber(b, len(locals))
	for _, l := range locals {
		b = binary.LittleEndian.AppendUint64(b, l)
	}
	return b
}

func appendHeldRequest(b []byte, q *heldRequest) []byte {
	return appendNumber(appendText(binary.AppendUvarint(append(b, kindAskHeld), q.number), q.worker), q.rank+1)
}

func appendPiece(b []byte, p *piece) []byte {
	b = appendNumber(appendNumber(binary.AppendUvarint(append(b, kindPiece), p.number), p.at), p.total)
	return append(appendNumber(b, len(p.bytes)), p.bytes...)
}

func appendLesson(b []byte, key uint64, l *learned.Lesson) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, kindLesson), key)
	b = binary.LittleEndian.AppendUint32(b, l.Class)
	b = appendNumber(appendNumber(appendNumber(b, l.Taught.Prompt+1), l.Taught.Tokens), len(l.Path.Steps))
	for i := range l.Path.Steps {
		s, flags := &l.Path.Steps[i], byte(0)
		if s.Answer {
			flags |= flagAnswer
		}
		if s.Media {
			flags |= flagMedia
		}
		if s.Untold {
			flags |= flagUntold
		}
		if i == 0 && l.Taught.Guess {
			flags |= flagGuess
		}
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, s.Number[0]), s.Number[1])
		b = appendNumber(append(b, flags), int(s.Bytes))
	}
	return appendLocals(b, l.Taught.Chain)
}

func appendState(b []byte, open []router.SharedBooking, whole bool) []byte {
	flags := byte(0)
	if whole {
		flags |= flagWhole
	}
	b = appendNumber(append(b, kindState, flags), len(open))
	for i := range open {
		s := &open[i]
		b = binary.AppendUvarint(b, s.Number)
		b = appendNumber(appendNumber(appendNumber(appendText(b, s.Worker), s.Rank+1), s.Tokens), s.Context)
		b = appendNumber(appendText(appendNumber(b, s.Answers), s.Decoder), s.DecoderRank+1)
	}
	return b
}

func appendOrders(b []byte, list []Order) []byte {
	b = appendNumber(append(b, kindOrders), len(list))
	for _, o := range list {
		b = appendNumber(append(appendText(b, o.Worker), byte(o.Service)), int(o.Age.Milliseconds()))
	}
	return b
}

func appendReport(b []byte, o *router.Outcome) []byte {
	b = append(appendText(append(b, kindReport), o.ID), byte(o.Phase))
	b = binary.LittleEndian.AppendUint64(appendText(appendText(b, o.Addr), o.Fault), o.Source)
	flags := byte(0)
	if o.Answered {
		flags = flagAnswered
	}
	if o.Cut {
		flags |= flagCut
	}
	if o.Retried {
		flags |= flagRetried
	}
	b = append(appendNumber(b, o.Code), flags)
	for _, n := range []int{int(o.FirstByte), o.CachedTokens + 1, o.PromptTokens + 1, o.OutputTokens} {
		b = appendNumber(b, n)
	}
	return b
}

// reader reads a message.
type reader struct{ binread.Reader }

func (r *reader) number() int  { return r.Number(maxNumber) }
func (r *reader) text() string { return string(r.Bytes(int(r.Byte()))) }
func (r *reader) rank() int    { return r.number() - 1 }

func (r *reader) booking() *router.SharedBooking {
	s := &router.SharedBooking{Answers: r.number(), Fetch: r.number(), Pull: r.number(), Model: r.text(), Tenant: r.text(),
		Number: uint64(r.number()), Worker: r.text(), Rank: r.rank(), Decoder: r.text(), DecoderRank: r.rank(),
		Tokens: r.number(), Context: r.number(), From: r.number(), Proven: r.number()}
	flags := r.Byte()
	s.EventsExpected, s.Fetches, s.Moved = flags&flagTold != 0, flags&flagFetches != 0, flags&flagMoved != 0
	s.Locals = r.words(router.MaxSharedBlocks)
	s.Media = make([]router.SharedMedium, r.Count(maxMedia, 17))
	for i := range s.Media {
		s.Media[i] = router.SharedMedium{Key: r.Word(), Alias: r.Word(), Tokens: r.number()}
	}
	return s
}

func (r *reader) words(most int) []uint64 { return r.Words(r.Count(most, 8)) }

func (r *reader) lesson() (key uint64, l *learned.Lesson) {
	l = new(learned.Lesson)
	key, l.Class = r.Word(), r.Uint32()
	l.Taught.Prompt, l.Taught.Tokens = r.number()-1, r.number()
	l.Path.Steps = make([]learned.Step, r.Count(learned.MaxSteps, 18))
	for i := range l.Path.Steps {
		s := &l.Path.Steps[i]
		s.Number = [2]uint64{r.Word(), r.Word()}
		flags, bytes := r.Byte(), r.number()
		s.Answer, s.Media, s.Untold = flags&flagAnswer != 0, flags&flagMedia != 0, flags&flagUntold != 0
		s.Bytes = int32(min(bytes, maxStepBytes))
		l.Taught.Guess = l.Taught.Guess || flags&flagGuess != 0
	}
	l.Taught.Chain = r.words(router.MaxSharedBlocks)
	if l.Taught.Prompt > len(l.Taught.Chain) || l.Taught.Tokens > learned.MaxTokens {
		r.Fail(errMalformed)
	}
	return key, l
}

func (r *reader) state() (open []router.SharedBooking, flags byte) {
	flags = r.Byte()
	open = make([]router.SharedBooking, r.Count(maxOpen, 8))
	for i := range open {
		open[i] = router.SharedBooking{Number: uint64(r.number()), Worker: r.text(), Rank: r.rank(), Tokens: r.number(),
			Context: r.number(), Answers: r.number(), Decoder: r.text(), DecoderRank: r.rank()}
	}
	return open, flags
}

func (r *reader) report() (o router.Outcome) {
	o.ID, o.Phase, o.Addr, o.Fault, o.Source, o.Code = r.text(), router.Phase(r.Byte()), r.text(), r.text(), r.Word(), r.number()
	flags := r.Byte()
	o.Answered, o.Cut, o.Retried = flags&flagAnswered != 0, flags&flagCut != 0, flags&flagRetried != 0
	o.FirstByte, o.CachedTokens, o.PromptTokens, o.OutputTokens = time.Duration(r.number()), r.number()-1, r.number()-1, r.number()
	return o
}

// sender returns the replica that sent a message.
func sender(message []byte) (from string, entries []byte, err error) {
	if len(message) < headBytes || len(message) > maxMessageBytes || message[0] != magic {
		return "", nil, fmt.Errorf("%w: %d bytes", errMalformed, len(message))
	}
	if message[1] != version {
		return "", nil, fmt.Errorf("%w: of version %d, want %d (replicas of one release?)", errMalformed, message[1], version)
	}
	return string(message[2:headBytes]), message[headBytes:], nil
}

// eachEntry calls t's functions for the entries of a message, up to the first that cannot be read.
func eachEntry(entries []byte, t *entryHandlers) error {
	r, path := &reader{binread.Reader{B: entries}}, []uint64(nil)
	for len(r.B) > 0 {
		switch kind := r.Byte(); kind {
		case kindGiven:
			s := r.booking()
			s.Path, path = path, nil
			if r.Err == nil && s.Number != 0 {
				t.shared(s)
			}
		case kindPath:
			path = r.words(learned.MaxSteps)
		case kindOver, kindBroken:
			s := &router.SharedBooking{Kind: router.BookingEnded, Number: uint64(r.number())}
			if kind == kindBroken {
				s.Kind = router.BookingBroken
			}
			if r.Err == nil {
				t.shared(s)
			}
		case kindReport:
			if o := r.report(); r.Err == nil && (o.Phase == router.Started || o.Phase == router.Ended || o.Phase == router.Lost ||
				o.Phase == router.Done) {
				t.report(o)
			}
		case kindState:
			open, flags := r.state()
			if r.Err == nil && flags&flagWhole != 0 {
				t.state(open)
			}
		case kindBye:
			t.bye()
			return nil // nothing would end what it books after this
		case kindAskHeld:
			if q := (heldRequest{number: uint64(r.number()), worker: r.text(), rank: r.rank()}); r.Err == nil {
				t.askHeld(q)
			}
		case kindPiece:
			p := &piece{number: uint64(r.number()), at: r.number(), total: r.number()}
			p.bytes = r.Bytes(r.Count(maxMessageBytes, 1))
			if r.Err == nil {
				t.piece(p)
			}
		case kindLesson:
			before := len(r.B)
			if key, l := r.lesson(); r.Err == nil {
				t.lesson(key, l, before-len(r.B))
			}
		case kindOrders:
			list := make([]Order, r.Count(maxOrders, 3))
			for i := range list {
				list[i] = Order{r.text(), fleet.Service(r.Byte()), time.Duration(r.number()) * time.Millisecond}
			}
			for _, o := range list {
				if r.Err == nil && o.Service <= fleet.Draining {
					t.ordered(o)
				}
			}
		case kindKey:
			if k := (key{r.Word(), r.Byte(), time.Duration(r.number()) * time.Millisecond}); r.Err == nil {
				t.key(k)
			}
		case kindAskKey:
			t.askKey()
		case kindSecret:
			if b := r.Bytes(block.SecretBytes); r.Err == nil {
				t.secret([block.SecretBytes]byte(b))
			}
		default:
			r.Fail(errMalformed)
		}
		if r.Err != nil {
			return errMalformed
		}
	}
	return nil
}

// entryHandlers has a function for each kind of entry.
type entryHandlers struct {
	shared func(*router.SharedBooking)
	report func(router.Outcome)
	state  func([]router.SharedBooking)
	bye    func()
	lesson func(key uint64, l *learned.Lesson, bytes int)

	askHeld func(heldRequest)
	piece   func(*piece)

	ordered func(Order)

	key    func(key)
	askKey func()
	secret func([block.SecretBytes]byte)
}
