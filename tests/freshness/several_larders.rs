//! Several larders with different configurations on one database.

use crate::documents::shapes::{countries_called_orders, documented, people};
use crate::documents::{CONFIG, ROWS, SCHEMA};
use crate::freshness::testbed::FreshnessTestbed;

/// Other resources of the same tables, some under names that the other larder uses for other tables.
const OTHER: &str = r#"
[feed]
max_staleness = "30s"
keys_per_statement = 3
notify = false

[[resource]]
name = "orders"
table = "Sales.country"
  [[resource.children]]
  name = "regions"
  table = "Sales.region"

[[resource]]
name = "people"
table = "Sales.person"
  [[resource.lookups]]
  name = "ally"
  table = "Sales.person"
  column = "friend"
  fields = { "visits" = "visits" }
"#;

async fn add_other(testbed: &mut FreshnessTestbed) {
    testbed
        .add(OTHER, vec![countries_called_orders(), people()], &[])
        .await;
}

/// Changes that are below the bound of keys per statement of one larder and above that of the other.
async fn change_everything(testbed: &mut FreshnessTestbed, round: &str) {
    // Triggers of all larders write the same log, and the lowest bound empties what it concerns.
    let beyond = ["/"];
    for sql in [
        "update region set title = title || '.'",
        "update country set title = title || '.' where code = 'NO'",
        "update \"Orders\" set title = 'x' where ref = 'R1'",
        "update note set body = body || '.'",
        "update region set country = '50%' where id = 1; update region set country = 'NO' where id = 2",
        "update person set visits = visits + 1",
        "insert into country values ('new'); delete from country where code = 'new'",
    ] {
        let what = format!("{round}: {sql}");
        let sql = format!("set search_path = \"Sales\"; {sql}");
        testbed.step_beyond(&what, &sql, &beyond).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_larder_disturbs_the_first_only_briefly() {
    let mut testbed = FreshnessTestbed::start().await;
    add_other(&mut testbed).await;
    testbed.become_right("the second's installing").await;
    change_everything(&mut testbed, "both").await;
    // The first leaves; what it installed goes on logging.
    let first = testbed.larders.remove(0);
    first.service.stop().await;
    change_everything(&mut testbed, "the second alone").await;
    testbed
        .add(CONFIG, documented(), &[("feed.keys_per_statement", "1")])
        .await;
    testbed.become_right("the third's installing").await;
    change_everything(&mut testbed, "a third").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn either_may_install_first() {
    let mut testbed = FreshnessTestbed::without_larder(&format!("{SCHEMA}{ROWS}")).await;
    add_other(&mut testbed).await;
    testbed.warm().await;
    testbed.add(CONFIG, documented(), &[]).await;
    testbed.become_right("the second's installing").await;
    change_everything(&mut testbed, "both").await;
}
