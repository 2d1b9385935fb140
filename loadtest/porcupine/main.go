// Command porcupine checks the history that `loadtest linearizable` has recorded: is it one of registers each of whose
// operations takes effect at one moment between its call and its return? Exit code 1 if not, or if it can't be told in time.
//
// A line is an operation: client, `read` or `write`, key, value, call and return in nanoseconds. The return of a write
// that may or may not have been made, now or later, is `-`.
package main

import (
	"bufio"
	"fmt"
	"log"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// timeout bounds the search for one key.
const timeout = time.Minute

type operation struct {
	isWrite bool
	key     int
	value   int64
}

// register is the model of one key. Its state is its value, at first 0.
var register = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, _ any) (bool, any) {
		done := input.(operation)
		return done.isWrite || state.(int64) == done.value, done.value
	},
}

// parse reads one operation.
func parse(line string) (entry porcupine.Operation, err error) {
	var done operation
	var kind, end string
	_, err = fmt.Sscan(line, &entry.ClientId, &kind, &done.key, &done.value, &entry.Call, &end)
	if err != nil {
		return entry, err
	}
	done.isWrite = kind == "write"
	entry.Input = done
	entry.Return = math.MaxInt64
	if end != "-" {
		_, err = fmt.Sscan(end, &entry.Return)
	}
	return entry, err
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: porcupine FILE")
	}
	file, err := os.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var history []porcupine.Operation
	wasRead := map[int64]bool{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		entry, err := parse(lines.Text())
		if err != nil {
			log.Fatalf("%s: %q: %v", os.Args[1], lines.Text(), err)
		}
		history = append(history, entry)
		if done := entry.Input.(operation); !done.isWrite {
			wasRead[done.value] = true
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
	// Values are unique. A write that may have been made and that no read shows makes no difference, only a longer search.
	keys, checked, open := map[int][]porcupine.Operation{}, 0, 0
	for _, entry := range history {
		done, isOpen := entry.Input.(operation), entry.Return == math.MaxInt64
		if isOpen && !wasRead[done.value] {
			continue
		}
		if isOpen {
			open++
		}
		checked++
		keys[done.key] = append(keys[done.key], entry)
	}
	failed := 0
	for key, part := range keys {
		if result := porcupine.CheckOperationsTimeout(register, part, timeout); result != porcupine.Ok {
			fmt.Printf("key %d, %d operations: %s\n", key, len(part), result)
			failed++
		}
	}
	fmt.Printf("%d operations on %d keys, %d of them writes of unknown outcome that were read: %d keys are not linearizable\n",
		checked, len(keys), open, failed)
	if failed > 0 {
		os.Exit(1)
	}
}
