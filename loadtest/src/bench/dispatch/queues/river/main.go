// Fills a queue of River and works it off: `fill URL COUNT`, `work URL COUNT`.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type deliver struct {
	ID       int    `json:"id"`
	Endpoint string `json:"endpoint"`
}

func (deliver) Kind() string { return "deliver" }

type worker struct{ river.WorkerDefaults[deliver] }

func (worker) Work(context.Context, *river.Job[deliver]) error { return nil }

func main() {
	ctx := context.Background()
	command, url := os.Args[1], os.Args[2]
	jobs, err := strconv.Atoi(os.Args[3])
	check(err)
	config, err := pgxpool.ParseConfig(url)
	check(err)
	// River takes a fourth connection, for LISTEN, out of the pool.
	config.MaxConns = 3
	pool, err := pgxpool.NewWithConfig(ctx, config)
	check(err)
	defer pool.Close()

	workers := river.NewWorkers()
	river.AddWorker(workers, worker{})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		// "Throughput is limited by this value" (Config.FetchCooldown). These three are those of `river bench`
		// (cmd/river/riverbench). Completions are always written in batches.
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2_000}},
		// The default logger writes to standard output.
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Workers: workers,
	})
	check(err)
	switch command {
	case "fill":
		fill(ctx, pool, client, jobs)
	case "work":
		work(ctx, client, jobs)
	default:
		log.Fatalf("unknown command %q", command)
	}
}

func fill(ctx context.Context, pool *pgxpool.Pool, client *river.Client[pgx.Tx], jobs int) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err)
	for first := 1; first <= jobs; first += 10_000 {
		var batch []river.InsertManyParams
		for id := first; id < first+10_000 && id <= jobs; id++ {
			endpoint := fmt.Sprintf("https://push.example/%d/", id)
			endpoint += strings.Repeat("x", 255-len(endpoint))
			batch = append(batch, river.InsertManyParams{Args: deliver{ID: id, Endpoint: endpoint}})
		}
		// By COPY: "quite fast" (Client.InsertManyFast).
		_, err := client.InsertManyFast(ctx, batch)
		check(err)
	}
	_, err = pool.Exec(ctx, "vacuum analyze")
	check(err)
}

func work(ctx context.Context, client *river.Client[pgx.Tx], jobs int) {
	// An event is sent when the completion is written. The channel holds all, since events that overflow it are dropped
	// (SubscribeConfig.ChanSize). River keeps completed jobs for 24 hours (Config.CompletedJobRetentionPeriod).
	completed, cancel := client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: jobs,
		Kinds:    []river.EventKind{river.EventKindJobCompleted},
	})
	defer cancel()
	start := time.Now()
	check(client.Start(ctx))
	for range jobs {
		<-completed
	}
	seconds := time.Since(start).Seconds()
	check(client.Stop(ctx))
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"jobs": jobs, "seconds": seconds, "version": version()}))
}

// Returns the version of River that this program was built with.
func version() string {
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		if module.Path == "github.com/riverqueue/river" {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return "unknown"
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
