//! Tests that take half a minute, since larder waits for the end of a possible restore: they run at the same time, so
//! that the run is not that much longer for each.

use crate::coexistence::{installing, publications, restores, schema_damage};
use crate::freshness::definitions;
use crate::outage;

#[tokio::test(flavor = "multi_thread")]
async fn tests_that_wait_for_the_end_of_a_restore() {
    tokio::join!(
        schema_damage::damage_is_mended(),
        definitions::what_was_replaced_is_right_and_trusted_late(),
        outage::another_database_of_the_same_name_is_another_database(),
        restores::a_database_that_is_created_anew_is_restored(),
        restores::an_older_dump_is_restored_once_schema_larder_is_dropped(),
        restores::a_restore_goes_through(),
        restores::dumps_are_put_into_other_databases(),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tests_that_wait_for_a_retry() {
    tokio::join!(
        definitions::the_mark_tells_of_a_disabled_trigger_before_fingerprints_do(),
        installing::a_slow_event_trigger_holds_up_no_writer(),
        publications::all_tables_may_be_published(),
    );
}
