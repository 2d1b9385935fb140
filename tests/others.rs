//! What others do with the database goes on as if larder were not there: `publications` of all tables and their
//! subscribers, `installing` beside writers, `locked` tables, `damage` of schema larder, `migrations`
//! that a resource does not fit, what a crash leaves of prepared transactions, `serializable` ones, and limits on
//! `temporary_files`.

mod damage;
mod installing;
mod locked;
mod migrations;
mod prepared;
mod publications;
mod restores;
mod serializable;
mod temporary_files;

/// After half a minute, each: so all at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_replaced_is_trusted_late() {
    tokio::join!(
        damage::damage_is_mended(),
        restores::a_database_that_is_created_anew_is_restored(),
        restores::an_older_dump_is_restored_once_schema_larder_is_dropped(),
    );
}
